"""Storage of the cluster metadata: the coordination interface, the embedded store, and the layout of the nodes."""
