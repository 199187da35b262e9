"""Whether the broker can write to its disk, and operations that failed for lack of space, descriptors or memory.

A log alone cannot know whether the broker can do its part as a leader or a replica in sync: an append may fail because
its own file is too large, or never happen, since the partition is idle. So an append that fails is followed by a probe,
and there are regular probes.
"""

from asyncio import Lock
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from kbroker.common import KafkaError, TopicPartition
from kbroker.metadata.image import WriteHealth
from kbroker.runtime.environment import Environment
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.periodic_task import PeriodicTask
from kbroker.storage.log.log_health import NO_DESCRIPTORS
from protocol.errors import ErrorCode

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
    """Decides from probes and failed appends. `error`: the last failure, "" while the health is OK. Times are
    monotonic."""

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


event_log = EventLogger("kbroker.logs")

PROBE_FILE = "write-probe"
PROBE_BYTES = 1 << 16
# After a failure there must be space for a batch of the usual maximum size (max.message.bytes).
LARGE_PROBE_BYTES = 1 << 20
# The interval of probes while the health is OK, and otherwise.
OK_PERIOD_MS = 10_000
PERIOD_MS = 1_000


class WriteHealthMonitor:
    """`path`: the data directory."""

    def __init__(self, environment: Environment, path: str) -> None:
        self._on_change: Callable[[], None] = lambda: None
        self._environment = environment
        self._path = f"{path}/{PROBE_FILE}"
        self._tracker = WriteHealthTracker()
        self._append_error: str | None = None
        self._lock = Lock()
        self._is_started = self._is_in_cluster = False
        task = partial(PeriodicTask, environment)
        self._tasks = [
            task("write probe", lambda: OK_PERIOD_MS, self.check, lambda: self._is_in_cluster),
            task("write probe after failures", lambda: PERIOD_MS, self.check, lambda: self.health),
            task("write probe at once", lambda: 0, self.check, lambda: self._append_error and not self._is_failing),
        ]

    @property
    def health(self) -> WriteHealth:
        return self._tracker.health

    @property
    def error(self) -> str:
        """Why the broker cannot write, or could not until recently; "" while the health is OK."""
        return self._tracker.error

    @property
    def _is_failing(self) -> bool:
        return self.health is WriteHealth.FAILING

    def report_to(self, on_change: Callable[[], None]) -> None:
        """Call this when the health has changed."""
        self._on_change = on_change

    def start(self, is_in_cluster: bool) -> None:
        """Check from now on. The disk of a lone broker is probed only after a failed append."""
        self._is_started, self._is_in_cluster = True, is_in_cluster
        self._schedule()

    def _schedule(self) -> None:
        if self._is_started:
            for task in self._tasks:
                task.schedule()

    async def stop(self) -> None:
        for task in self._tasks:
            await task.stop()

    def on_append_failed(self, error: str) -> None:
        """Called when an append has failed for lack of space, descriptors or memory, or on a read-only file system."""
        self._append_error = error
        self._schedule()

    def require_writable(self) -> None:
        """Raise KAFKA_STORAGE_ERROR if the broker cannot write."""
        if self._is_failing:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"The broker cannot write to its disk: {self.error}.")

    async def check(self) -> None:
        """Probe the disk, and update the health."""
        async with self._lock:
            append_error, self._append_error = self._append_error, None
            size = LARGE_PROBE_BYTES if append_error or self.health else PROBE_BYTES
            probe_error = await self._environment.offload(self._probe_blocking, size)
            if self._tracker.check(self._environment.clock.mono_ms(), probe_error, append_error):
                self._log_change()
                self._schedule()
                self._on_change()

    def _probe_blocking(self, size: int) -> str | None:
        """Write and delete a file. Returns the error, None if there is none."""
        disk = self._environment.disk
        try:
            disk.write_atomic(self._path, bytes(size), sync=False)
            disk.unlink(self._path)
        except OSError as error:
            return error.strerror or str(error)
        return None

    def _log_change(self) -> None:
        if self.health is WriteHealth.FAILING:
            event_log.error(
                "the broker cannot write to its disk", path=self._path.rpartition("/")[0], reason=self.error
            )
        elif self.health is WriteHealth.PROBATION:
            event_log.info("the broker can write to its disk again, and is on probation", former_reason=self.error)
        else:
            event_log.info("the probation after failed writes has ended")


WINDOW_MS = 60_000
MAX_LINES_PER_WINDOW = 100


class ShortageReporter:
    """Logs each operation of each partition once per window."""

    def __init__(self, environment: Environment) -> None:
        self._on_out_of_descriptors: Callable[[], None] = lambda: None
        self._on_append_failed: Callable[[str], None] = lambda reason: None
        self._environment = environment
        self._window_start_ms = 0
        self._reported: set[tuple[TopicPartition, str]] = set()
        self._suppressed = 0

    def report_to(
        self, on_out_of_descriptors: Callable[[], None], on_append_failed: Callable[[str], None] = lambda reason: None
    ) -> None:
        """Call these on the event loop: when an operation lacked a file descriptor; when it was an append, or a log
        could not be opened, with the reason."""
        self._on_out_of_descriptors, self._on_append_failed = on_out_of_descriptors, on_append_failed

    def report(self, tp: TopicPartition, operation: str, error: OSError) -> None:
        """Report that an operation on a log has failed and will be retried. May be called in any thread."""
        try:
            self._environment.loop.call_soon_threadsafe(self._report, tp, operation, error)
        except RuntimeError:
            # The event loop is closed, since the broker has stopped.
            return

    def report_unopened(self, error: OSError) -> None:
        """Report that a log cannot be opened now: appends to it fail, too. May be called in any thread."""
        with suppress(RuntimeError):  # as in `report`
            self._environment.loop.call_soon_threadsafe(self._on_append_failed, error.strerror or str(error))

    def _report(self, tp: TopicPartition, operation: str, error: OSError) -> None:
        if error.errno in NO_DESCRIPTORS:
            self._on_out_of_descriptors()
        if operation == "append":
            self._on_append_failed(error.strerror or str(error))
        now_ms = self._environment.clock.mono_ms()
        if now_ms - self._window_start_ms >= WINDOW_MS:
            self._reported.clear()
        if not self._reported:
            # A window starts with its first line.
            self._window_start_ms = now_ms
        if (tp, operation) in self._reported:
            return
        if len(self._reported) >= MAX_LINES_PER_WINDOW:
            self._suppressed += 1
            return
        self._reported.add((tp, operation))
        suppressed, self._suppressed = self._suppressed, 0
        event_log.warning(
            "log operation failed, will be retried",
            partition=tp,
            operation=operation,
            reason=error,
            others_not_reported=suppressed or None,
        )
