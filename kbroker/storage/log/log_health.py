"""Whether a log accepts appends and can be read: it may be offline, or reject appends until the disk has room.

A shortage is a temporary failure of the system, after which an operation may be retried: a lack of disk space, file
descriptors or memory. Any other failure means that the disk cannot be trusted.
"""

from errno import EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM, ENOSPC, EROFS
from typing import Protocol

from kbroker.common import KafkaError, TopicPartition
from kbroker.runtime.event_log import EventLogger
from protocol.errors import ErrorCode

event_log = EventLogger("kbroker.logs")

# No space: on the disk, in the user's quota, or below the maximum file size.
NO_SPACE = (ENOSPC, EDQUOT, EFBIG)
# The process, or the whole system, has the maximum number of open files.
NO_DESCRIPTORS = (EMFILE, ENFILE)
# Errors of a file system that accepts no data now, but may do so later.
_REFUSED = (*NO_SPACE, EROFS)


def is_shortage(error: OSError) -> bool:
    """Return whether the operation failed for lack of disk space, file descriptors or memory.

    Not for syncs (see `is_unbegun_sync`): after a sync has failed for any reason, the state of the unsynced bytes is
    unknown.
    """
    return error.errno in NO_SPACE or error.errno in NO_DESCRIPTORS or error.errno == ENOMEM


def is_refused(error: OSError) -> bool:
    """Return whether the file system accepts no data now, but may do so later: it is full or read-only."""
    return error.errno in _REFUSED


def is_unbegun_sync(error: OSError) -> bool:
    """Return whether a sync failed before it began, because the file or directory could not be opened."""
    return error.errno in NO_DESCRIPTORS


class ShortageListener(Protocol):
    def on_shortage(self, tp: TopicPartition, operation: str, error: OSError) -> None:
        """Report what has failed, and why, if the operation may be retried. May be called in a thread."""
        ...


class LogHealth:
    """The health of one log. Its methods may be called in a thread, apart from `suspend` and `resume`.

    `full`: appends are rejected because the disk had no space or, with `read_only`, because the file system has become
    read-only. `offline`: the reason why the log is offline, None if it is not. It is after any other error, until it is
    opened again: only recovery can determine what the disk holds. `is_ok`: neither. `is_readable`: no read has failed.
    After a shortage the log stays online, and the operation may be retried.
    """

    __slots__ = ("_listener", "full", "is_ok", "is_readable", "offline", "read_only", "tp")

    def __init__(self, tp: TopicPartition, listener: ShortageListener | None = None) -> None:
        self.tp = tp
        self.offline: str | None = None
        self.is_ok = self.is_readable = True
        self.full = False
        self.read_only = False
        self._listener = listener

    def on_shortage(self, operation: str, error: OSError) -> None:
        if self._listener is not None:
            self._listener.on_shortage(self.tp, operation, error)

    @property
    def append_error(self) -> str | None:
        """The reason why appends fail; None if they do not."""
        if self.offline is not None or not self.full:
            return self.offline
        return "the file system is read-only" if self.read_only else "no space left on the disk"

    def suspend(self) -> None:
        """Reject appends, as on a full disk."""
        self.full, self.is_ok = True, False

    def resume(self) -> None:
        """Accept appends again."""
        self.full = self.read_only = False
        self.is_ok = True
        # Checked after the assignment, since a thread may take the log offline meanwhile.
        if self.offline is not None:
            self.is_ok = False

    def mark_offline(self, reason: str) -> None:
        """Take the log offline after an error. The first reason stays."""
        if self.offline is None:
            event_log.error("log offline until a restart", partition=self.tp, reason=reason)
        self.close(reason)

    def close(self, reason: str) -> None:
        """Accept no further appends."""
        self.offline = self.offline or reason
        self.is_ok = False

    def read_failed(self, error: OSError) -> KafkaError:
        """Take the log offline, unless it is a shortage. Returns the error to raise."""
        if is_shortage(error):
            self.on_shortage("read", error)
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"read failed: {error}")
        self.is_readable = False
        self.mark_offline(f"read failed: {error}")
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline)

    def append_failed(self, error: OSError) -> None:
        if error.errno in _REFUSED:
            self.suspend()
            self.read_only = error.errno == EROFS
        elif is_shortage(error):
            self.on_shortage("append", error)
        else:
            self.mark_offline(f"append failed: {error}")

    def task_failed(self, error: OSError) -> None:
        # Index files and snapshots can be written later: their content is in memory or in the log.
        if is_shortage(error):
            self.on_shortage("background work", error)
        elif error.errno not in _REFUSED:
            self.mark_offline(f"background work failed: {error}")
