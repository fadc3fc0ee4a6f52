"""torchvision's transforms to stages, a module for each kind.

``windows`` (crops, resizes, flips, padding), ``colors``, ``warps``, ``policies`` and ``containers``
have a table ``converters()`` from classes to functions; ``conversions`` and ``erasing`` are about
what ends a plan.
"""
