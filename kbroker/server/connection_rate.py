"""The limit of new connections per second: max.connection.creation.rate (KIP-612)."""


class ConnectionRateLimiter:
    """Delays connections that exceed the rate. The connections of one second may all arrive at the same time."""

    def __init__(self) -> None:
        # The time from which on another connection does not exceed the rate.
        self._free_at_s = 0.0

    def delay_s(self, now_s: float, rate: int) -> float:
        """Return the delay of a connection that arrives at `now_s`, at `rate` connections per second."""
        self._free_at_s = max(self._free_at_s, now_s - 1) + 1 / max(rate, 1)
        return max(0.0, self._free_at_s - now_s)
