"""Whether a log accepts appends and can be read: it may be offline, or refuse appends until the disk has room."""

from errno import EDQUOT, EFBIG, EMFILE, ENFILE, ENOSPC, EROFS

from kbroker.common import KafkaError, TopicPartition
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode

event_log = EventLogger("kbroker.logs")

# The file system accepts no data now, but may do so later.
_REFUSED = (ENOSPC, EDQUOT, EFBIG, EROFS)
# Too many files are open: an operation fails, and the next one may not.
_NO_FILES = (EMFILE, ENFILE)


class LogHealth:
    """A base of Log.

    `full`: appends are refused because the disk had no room or, with `read_only`, because the file system has become
    read-only. A log is offline after any other error, until it is opened again: only recovery can tell what the disk
    holds.
    """

    __slots__ = ("_is_readable", "_offline", "full", "read_only", "tp")

    tp: TopicPartition

    def __init__(self) -> None:
        self._offline: str | None = None
        # No read has failed.
        self._is_readable = True
        self.full = False
        self.read_only = False

    @property
    def offline(self) -> str | None:
        """Why the log is offline; None while it is not."""
        return self._offline

    @property
    def refusal(self) -> str | None:
        """Why appends are refused; None while they are not."""
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
        """Take the log offline; returns the error to raise. May be called in a thread."""
        self._is_readable = False
        self.mark_offline(f"read failed: {error}")
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self._offline)

    def _append_failed(self, error: OSError) -> None:
        if error.errno in _REFUSED:
            self.full = True
            self.read_only = error.errno == EROFS
        elif error.errno not in _NO_FILES:
            self.mark_offline(f"append failed: {error}")

    def _task_failed(self, error: OSError) -> None:
        # Index files and snapshots can wait: their content is in memory or in the log.
        if error.errno not in _REFUSED:
            self.mark_offline(f"background work failed: {error}")
