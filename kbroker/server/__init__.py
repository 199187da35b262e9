"""The socket server: connections, request frames, responses in request order, limits."""
