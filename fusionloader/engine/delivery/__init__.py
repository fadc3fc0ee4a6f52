"""Finished batches: put together on the host, page-locked, copied to a device."""
