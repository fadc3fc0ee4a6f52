"""Datasets of shards: encoded images in Arrow, Parquet, MDS, LitData, LMDB and tar files."""
