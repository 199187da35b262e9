"""The sources of a broker's static configuration: files and environment variables."""
