"""The proxy: the process by which remote workers take part in the work of one loader."""
