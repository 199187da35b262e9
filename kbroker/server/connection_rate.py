"""How fast connections may come: max.connection.creation.rate (KIP-612)."""


class ConnectionRateLimiter:
    """Gives each one its moment. As many as may come in a second may come at once."""

    def __init__(self) -> None:
        # When it would all be paid for; the clock is the caller's.
        self._free_at_s = 0.0

    def delay_s(self, now_s: float, rate: int) -> float:
        """How long the one that comes now has to wait, at `rate` a second."""
        self._free_at_s = max(self._free_at_s, now_s - 1) + 1 / max(rate, 1)
        return max(0.0, self._free_at_s - now_s)
