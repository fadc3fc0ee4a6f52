"""Datasets whose images are members of larger files: tar and others."""
