"""Converts torchvision's transforms to stages, a module for each kind.

``windows`` (crops, resizes, flips, padding), ``colors``, ``warps`` and ``policies`` have a function
``converters()``, which returns a function from transform and ``Context`` to stage for each class.
``conversions`` and ``erasing`` convert what ends a plan.
"""
