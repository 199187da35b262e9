"""What an archive holds: the manifest's commits, its files and columns, and the store that reads and adds to them."""
