"""Loaders for long in one process: what it holds, and how that grows."""
