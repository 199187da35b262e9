"""Where the pipeline keeps files: a local directory, or any file system that Hadoop supports."""
