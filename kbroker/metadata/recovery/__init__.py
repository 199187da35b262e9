"""What protects the logs when the metadata in the coordination service is lost, or that of another cluster."""
