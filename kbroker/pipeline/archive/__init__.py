"""Topics as Parquet files, and the manifest that lists the files."""
