"""Beside the loader: frameworks, serving and validation."""
