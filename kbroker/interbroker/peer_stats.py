"""Counts of the connections to other brokers, for the exporter."""


class PeerStats:
    """Counts since the start, summed over all peers. `connections`: the number of open ones."""

    __slots__ = ("connection_failures", "connections", "requests_without_response")

    def __init__(self) -> None:
        self.connections = 0
        self.connection_failures = 0
        self.requests_without_response = 0
