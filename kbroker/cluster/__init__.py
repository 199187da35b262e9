"""Coordination, the controller and the metadata that follows from them."""
