"""One set of worker processes for several loaders of a process."""
