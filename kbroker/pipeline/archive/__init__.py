"""Topics as Parquet files, and the manifest that says which files there are."""
