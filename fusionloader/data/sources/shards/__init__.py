"""Datasets of shards: where the encoded images of Arrow, Parquet, MDS, LitData, LMDB, tar are."""
