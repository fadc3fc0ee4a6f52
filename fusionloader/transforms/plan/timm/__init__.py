"""Converts timm's transforms to stages, where the program has imported timm.

``transforms`` converts crops and resizes, ``policies`` the policies; ``names`` finds timm's classes
without importing it.
"""
