"""Op families: kinds of operations that one prebuilt DALI pipeline does for many samples.

``steps`` says which family does an operation and with which values (warps by ``matrices``), and
``support`` which plans they can do; neither needs DALI. ``level_graphs`` and ``place_graphs`` are
the graphs, of parts in ``pixels``; ``family`` lists them. ``tasks`` runs samples through families,
in the order that ``schedule`` finds, and then through ``conversion`` (``affine_tables``).
"""
