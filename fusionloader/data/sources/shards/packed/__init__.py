"""Images in samples that are packed one after the other: MDS, LitData, LMDB."""
