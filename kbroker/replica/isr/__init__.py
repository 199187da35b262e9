"""In-sync replicas: the positions of the followers, and proposals of changes to the controller."""
