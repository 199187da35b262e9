"""Sockets: frames in, frames out, in order."""
