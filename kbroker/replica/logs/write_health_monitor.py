"""Finds out whether the broker can write to its disk: at once when an append fails, and with regular probes.

A log alone cannot know: an append may fail because its own file is too large, or never happen, since the partition is
idle. What counts here is whether the broker can do its part as a leader or a replica in sync.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kbroker.metadata.image import WriteHealth
from kbroker.replica.logs.write_health_tracker import WriteHealthTracker
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.mutex import Mutex
from kbroker.runtime.periodic_task import PeriodicTask

if TYPE_CHECKING:
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.logs")

PROBE_FILE = "write-probe"
PROBE_BYTES = 1 << 16
# After a failure there must be space for a batch of the usual maximum size (max.message.bytes).
LARGE_PROBE_BYTES = 1 << 20
# The interval of probes while the health is OK, and otherwise.
OK_PERIOD_MS = 10_000
PERIOD_MS = 1_000


class WriteHealthMonitor:
    """`path`: the data directory. `on_change` is called when the health has changed."""

    def __init__(self, environment: Environment, path: str) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._environment = environment
        self._path = f"{path}/{PROBE_FILE}"
        self._tracker = WriteHealthTracker()
        self._append_error: str | None = None
        self._lock = Mutex(environment.loop)
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

    async def check(self) -> None:
        """Probe the disk, and update the health."""
        async with self._lock:
            append_error, self._append_error = self._append_error, None
            size = LARGE_PROBE_BYTES if append_error or self.health else PROBE_BYTES
            probe_error = await self._environment.offload(self._probe_blocking, size)
            if self._tracker.check(self._environment.clock.mono_ms(), probe_error, append_error):
                self._log_change()
                self._schedule()
                self.on_change()

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
            log.error("the broker cannot write to its disk", path=self._path.rpartition("/")[0], reason=self.error)
        elif self.health is WriteHealth.PROBATION:
            log.info("the broker can write to its disk again, and is on probation", former_reason=self.error)
        else:
            log.info("the probation after failed writes has ended")
