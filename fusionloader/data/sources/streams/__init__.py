"""Images in shards on object storage, read as a stream."""
