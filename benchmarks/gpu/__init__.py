"""The first hours on a device: three runs of less than ten minutes, and what they do."""
