"""Connections before they serve requests: TLS and SASL."""
