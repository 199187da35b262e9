"""The index files of a segment: offset index, time index, transaction index."""
