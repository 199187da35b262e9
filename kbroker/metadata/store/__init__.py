"""Where cluster metadata is kept: the coordination interface, the embedded store, and the nodes' layout."""
