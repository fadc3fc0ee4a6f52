"""Finished batches on their way to the caller: page-locking and copies to a device."""
