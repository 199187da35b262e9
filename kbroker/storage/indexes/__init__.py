"""The index files of a segment: offset, time and transaction index."""
