"""`archive verify`: an archive compared with itself and with the broker."""
