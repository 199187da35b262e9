"""File access of the pipeline: local directories, and every file system that Hadoop supports."""
