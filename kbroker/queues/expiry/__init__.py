"""Expiry: consumers do not see records after the end of their time to live."""
