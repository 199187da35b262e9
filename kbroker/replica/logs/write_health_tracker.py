"""Decides from probes and failed appends whether a broker can write to its disk (WriteHealth)."""

from kbroker.metadata.image import WriteHealth

# A failed append after which a probe succeeds is not yet a failing disk: space was freed, or a file closed. Another one
# within this time is: each append fails, but not the probe (EFBIG, or a large batch on an almost full disk).
DOUBT_MS = 10_000
# How long writes must have succeeded before the probation begins.
STABLE_MS = 1_000
# The probation doubles with each failure, up to the maximum. The next failure after FORGET_MS without any has the
# minimum again.
MIN_PROBATION_MS = 5_000
MAX_PROBATION_MS = 60_000
FORGET_MS = 600_000


class WriteHealthTracker:
    """`error`: the last failure, "" while the health is OK. All times are monotonic."""

    def __init__(self) -> None:
        self.health = WriteHealth.OK
        self.error = ""
        self._doubted_at_ms: int | None = None
        self._stable_since_ms: int | None = None
        self._failed_at_ms: int | None = None
        self._probation_since_ms = 0
        self._probation_ms = 0

    def check(self, now_ms: int, probe_error: str | None, append_error: str | None) -> bool:
        """Record a probe, and whether an append has failed since the last one. Returns whether the health changed.

        The errors are None after a success.
        """
        before = self.health
        error = probe_error or (append_error if self._is_failure(now_ms, append_error) else None)
        if error is not None:
            self._fail(now_ms, error)
        elif self.health is WriteHealth.FAILING:
            if self._stable_since_ms is None:
                self._stable_since_ms = now_ms
            elif now_ms - self._stable_since_ms >= STABLE_MS:
                self.health, self._probation_since_ms = WriteHealth.PROBATION, now_ms
        elif self.health is WriteHealth.PROBATION and now_ms - self._probation_since_ms >= self._probation_ms:
            self.health, self.error = WriteHealth.OK, ""
        return self.health is not before

    def _is_failure(self, now_ms: int, append_error: str | None) -> bool:
        if append_error is None:
            return False
        doubted_at_ms, self._doubted_at_ms = self._doubted_at_ms, now_ms
        if self.health is WriteHealth.FAILING:
            return True
        return doubted_at_ms is not None and now_ms - doubted_at_ms < DOUBT_MS

    def _fail(self, now_ms: int, error: str) -> None:
        self.error, self._stable_since_ms = error, None
        if self.health is not WriteHealth.FAILING:
            self.health = WriteHealth.FAILING
            is_first = self._failed_at_ms is None or now_ms - self._failed_at_ms >= FORGET_MS
            self._probation_ms = MIN_PROBATION_MS if is_first else min(2 * self._probation_ms, MAX_PROBATION_MS)
        self._failed_at_ms = now_ms
