"""Shared memory: objects, control block, batch slots. Imports nothing else of the package."""
