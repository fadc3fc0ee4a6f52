"""Data sources, samplers, epochs, read-ahead and deferred images."""
