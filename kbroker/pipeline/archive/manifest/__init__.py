"""The manifest of an archive: its commits, their JSON, and the files that hold them."""
