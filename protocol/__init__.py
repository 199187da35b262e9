"""The Kafka wire protocol: APIs, messages, records, frames and the client side of a connection. No I/O.

Nothing here imports kbroker, opens a socket or reads a clock.
"""
