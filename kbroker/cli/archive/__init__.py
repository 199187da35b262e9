"""`kbroker archive`: topics as Parquet files."""
