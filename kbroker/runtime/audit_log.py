"""The audit log: who was denied, who changed what, and from where, as one JSON object a line.

Events are buffered, and written in a thread each FLUSH_MS, so recording one never waits. Equal events of one write are
one line with a `count`. Events that do not fit into the buffer, or that cannot be written, are counted, and the next
line that is written has their number. A crash of the broker loses at most the events of the last FLUSH_MS.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from kbroker.runtime.event_log import EventLogger, Field, plain
from kbroker.runtime.periodic_task import PeriodicTask

if TYPE_CHECKING:
    from kbroker.runtime.disk import DiskFile
    from kbroker.runtime.environment import Environment

log = EventLogger("kbroker.audit")

FLUSH_MS = 1_000
MAX_PENDING_BYTES = 4 << 20


changes_log = EventLogger("kbroker.changes")
# Changes of one request that the broker's log has line by line.
MAX_CHANGE_LINES = 20


def record_changes(
    audit: AuditLog | None, sender: Mapping[str, Field], changes: Iterable[tuple[str, str]], level: int = logging.INFO
) -> None:
    """Record what a client has changed in the audit log, if there is one, and in the broker's log with this level.

    `changes`: the changed things, and what has changed. `sender`: fields that say who has sent the request.
    """
    pairs = iter(changes)
    for resource, change in islice(pairs, MAX_CHANGE_LINES):
        changes_log.event(level, "changed", resource=resource, change=change or None, **sender)
        if audit is not None:
            audit.record("changed", **sender, resource=resource, change=change or None)
    others = 0
    for resource, change in pairs:
        others += 1
        if audit is not None:
            audit.record("changed", **sender, resource=resource, change=change or None)
    if others:
        changes_log.event(level, "more changes by the same request", count=others, **sender)


class AuditLog:
    """Appends to the file `path`, which only the broker's user can read.

    A file of `max_bytes` or more is renamed to `path.1`, that one to `path.2`; there are at most `files` of them.
    """

    def __init__(self, environment: Environment, path: str, max_bytes: int, files: int) -> None:
        """Raises OSError if the file cannot be opened."""
        self._environment, self._path = environment, path
        self._max_bytes, self._files = max_bytes, files
        self._pending: dict[str, tuple[int, int]] = {}
        self._pending_bytes = 0
        self._dropped = 0
        self._is_failing = False
        self._file: DiskFile | None = self._open()
        self._flushes = PeriodicTask(
            environment, "audit log", lambda: FLUSH_MS, self._flush, lambda: self._pending or self._dropped
        )

    def record(self, event: str, **fields: Field) -> None:
        """Record an event. Fields that are None are omitted. They must not have secrets."""
        shown = {name: plain(value) for name, value in fields.items() if value is not None}
        text = json.dumps({"event": event, **shown})
        known = self._pending.get(text)
        if known is not None:
            self._pending[text] = known[0], known[1] + 1
        elif self._pending_bytes + len(text) > MAX_PENDING_BYTES:
            self._dropped += 1
        else:
            self._pending[text] = self._environment.clock.now_ms(), 1
            self._pending_bytes += len(text)
        self._flushes.schedule()

    async def stop(self) -> None:
        """Write the events that are left."""
        await self._flushes.stop()
        await self._flush()
        if self._file is not None:
            self._file.close()

    async def _flush(self) -> None:
        pending, self._pending, self._pending_bytes = self._pending, {}, 0
        dropped, self._dropped = self._dropped, 0
        if not pending and not dropped:
            return
        if dropped:
            now_ms = self._environment.clock.now_ms()
            pending[json.dumps({"event": "dropped", "events": dropped})] = now_ms, 1
        lines = [_line(text, time_ms, count) for text, (time_ms, count) in pending.items()]
        try:
            await self._environment.offload(self._write, "".join(lines).encode())
        except OSError as error:
            events = sum(count for _, count in pending.values())
            self._dropped += events - bool(dropped) + dropped
            if not self._is_failing:
                log.error("the audit log cannot be written", path=self._path, reason=error, events=self._dropped)
            self._is_failing = True
            return
        if dropped:
            log.warning("events are missing in the audit log", path=self._path, events=dropped)
        self._is_failing = False

    def _open(self) -> DiskFile:
        disk = self._environment.disk
        file = disk.open(self._path, create=True)
        disk.make_private(self._path)
        return file

    def _write(self, data: bytes) -> None:
        """Append whole lines, or raise OSError."""
        file = self._file or self._open()
        self._file = file
        size = file.size()
        if size >= self._max_bytes:
            file = self._rotate(file)
            size = 0
        written = file.append(data)
        if written < len(data):
            file.truncate(size)
            raise OSError(f"{written} of {len(data)} bytes were written")

    def _rotate(self, file: DiskFile) -> DiskFile:
        disk = self._environment.disk
        self._file = None
        file.close()
        names = [self._path, *(f"{self._path}.{number}" for number in range(1, self._files))]
        if len(names) == 1:
            disk.unlink(self._path)
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if disk.exists(newer):
                disk.rename(newer, older)
        self._file = self._open()
        return self._file


def _line(text: str, time_ms: int, count: int) -> str:
    """Return an event with the time of its first occurrence, in milliseconds since the epoch."""
    repeats = f', "count": {count}' if count > 1 else ""
    return f'{{"time_ms": {time_ms}, {text[1:-1]}{repeats}}}\n'
