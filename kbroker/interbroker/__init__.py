"""Connections between brokers: the handshake, requests to peers and to the controller, forwarding."""
