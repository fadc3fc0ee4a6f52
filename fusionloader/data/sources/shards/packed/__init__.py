"""Images in samples that are packed one behind the other: MDS, LitData, LMDB."""
