"""Shared memory: objects, slots, and descriptors that processes share."""
