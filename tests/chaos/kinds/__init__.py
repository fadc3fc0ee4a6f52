"""How to run epochs of each part of the loader."""
