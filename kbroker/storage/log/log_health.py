"""Whether a log accepts appends and can be read: it may be offline, or reject appends until the disk has room."""

from collections.abc import Callable
from errno import EROFS

from kbroker.common import KafkaError, TopicPartition
from kbroker.runtime.event_log import EventLogger
from kbroker.storage.shortage import NO_SPACE, is_shortage
from protocol.errors import ErrorCode

event_log = EventLogger("kbroker.logs")

# Errors of a file system that accepts no data now, but may do so later.
_REFUSED = (*NO_SPACE, EROFS)


class LogHealth:
    """A base of Log.

    `full`: appends are rejected because the disk had no space or, with `read_only`, because the file system has become
    read-only. A log is offline after any other error, until it is opened again: only recovery can determine what the
    disk holds. The reporter of shortages is called, perhaps in a thread, with what failed and why if that is a shortage
    (shortage.py): the log stays online, and the operation may be retried.
    """

    __slots__ = ("_is_readable", "_offline", "_on_shortage", "full", "read_only", "tp")

    tp: TopicPartition

    def __init__(self) -> None:
        self._offline: str | None = None
        # False once a read has failed.
        self._is_readable = True
        self.full = False
        self.read_only = False
        self._on_shortage: Callable[[TopicPartition, str, OSError], None] = _ignore

    def report_shortages_to(self, report: Callable[[TopicPartition, str, OSError], None]) -> None:
        self._on_shortage = report

    def on_shortage(self, operation: str, error: OSError) -> None:
        self._on_shortage(self.tp, operation, error)

    @property
    def offline(self) -> str | None:
        """The reason why the log is offline; None if it is not."""
        return self._offline

    @property
    def append_error(self) -> str | None:
        """The reason why appends fail; None if they do not."""
        if self._offline is not None or not self.full:
            return self._offline
        return "the file system is read-only" if self.read_only else "no space left on the disk"

    def mark_offline(self, reason: str) -> None:
        """Take the log offline after an error. May be called in a thread. The first reason stays."""
        if self._offline is None:
            event_log.error("log offline until a restart", partition=self.tp, reason=reason)
        self._set_offline(reason)

    def _set_offline(self, reason: str) -> None:
        self._offline = self._offline or reason

    def read_failed(self, error: OSError) -> KafkaError:
        """Take the log offline, unless it is a shortage. Returns the error to raise. May be called in a thread."""
        if is_shortage(error):
            self.on_shortage("read", error)
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"read failed: {error}")
        self._is_readable = False
        self.mark_offline(f"read failed: {error}")
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._offline)

    def _append_failed(self, error: OSError) -> None:
        if error.errno in _REFUSED:
            self.full = True
            self.read_only = error.errno == EROFS
        elif is_shortage(error):
            self.on_shortage("append", error)
        else:
            self.mark_offline(f"append failed: {error}")

    def _task_failed(self, error: OSError) -> None:
        # Index files and snapshots can be written later: their content is in memory or in the log.
        if is_shortage(error):
            self.on_shortage("background work", error)
        elif error.errno not in _REFUSED:
            self.mark_offline(f"background work failed: {error}")


def _ignore(tp: TopicPartition, operation: str, error: OSError) -> None:
    pass
