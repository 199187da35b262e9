"""The manifest of an archive: its commits, their JSON, and their files."""
