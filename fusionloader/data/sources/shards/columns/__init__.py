"""Images in columns of tables: Arrow files, Hugging Face datasets, Parquet files."""
