"""Produces the records of an archive to topics again."""
