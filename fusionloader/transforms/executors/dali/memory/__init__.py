"""DALI's allocations in borrowed memory.

``resource_library`` builds ``memory_resource.cpp``, by which DALI allocates in borrowed blocks;
``borrowing`` installs it, and frees what DALI's pool keeps.
"""
