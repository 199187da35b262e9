"""`archive compact`: merges an archive's small files into large ones."""
