"""Finished batches: assembled on the host, page-locked, copied to a device."""
