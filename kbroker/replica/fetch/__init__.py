"""The fetch path: fetch sessions (KIP-227), log reads, delayed fetches."""
