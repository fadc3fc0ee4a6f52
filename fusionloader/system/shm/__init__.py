"""Shared memory: objects, control block, batch slots, stores of what is kept of files."""
