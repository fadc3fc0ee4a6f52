"""timm's transforms to stages, where the program has imported timm.

``transforms`` has crops and resizes, ``policies`` the policies, both as a table ``converters()``;
``names`` finds timm's classes without importing it.
"""
