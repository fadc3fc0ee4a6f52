"""DALI's allocations: in borrowed memory (``borrowing``), and what its pool keeps.

``resource_library`` builds ``memory_resource.cpp``, by which DALI allocates in borrowed blocks;
``unused_memory`` frees what DALI's pool keeps.
"""
