"""What protects the logs when the metadata is lost, is that of another cluster, or is older than the logs."""
