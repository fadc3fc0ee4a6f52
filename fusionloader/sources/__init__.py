"""Where samples come from: datasets, their tables in shared memory, and what is kept of files."""
