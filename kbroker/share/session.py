"""Share sessions: the partitions that a member of a share group fetches over its connection (KIP-932).

The epoch 0 opens a session, or replaces the member's former one; the epochs 1, 2, ... continue it, and -1 ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1
# The partitions of all sessions, which need not exist.
MAX_PARTITIONS = 100_000
# If there are too many sessions, those that were not used for this time are closed.
EVICTION_MS = 120_000

# A topic id and a partition.
TopicIdPartition = tuple[bytes, int]


class ShareSession:
    """`connection`: the one over which it was opened. `epoch`: that of the next request. `last_used_ms`: monotonic.

    `waiter`: called when a request that waits should look again. `is_woken`: it should, although it does not wait yet.
    """

    __slots__ = (
        "connection", "epoch", "group_id", "is_closed", "is_woken", "last_used_ms", "member_id", "partitions", "waiter",
    )  # fmt: skip

    def __init__(self, group_id: str, member_id: str, connection: object, now_ms: int) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection = connection
        self.epoch = 1
        self.last_used_ms = now_ms
        self.is_closed = self.is_woken = False
        self.waiter: Callable[[], None] | None = None
        # The one that was fetched last is the last.
        self.partitions: dict[TopicIdPartition, None] = {}

    def wake(self) -> None:
        self.is_woken = True
        if self.waiter is not None:
            self.waiter()

    def close(self) -> None:
        self.is_closed = True
        self.wake()

    def move_to_end(self, key: TopicIdPartition) -> None:
        """Move a partition behind the others after it was read, so that none starves."""
        if key in self.partitions:
            del self.partitions[key]
            self.partitions[key] = None


class ShareSessionCache:
    """The sessions of this broker, at most one for each member of a group. The one that was used last is the last."""

    __slots__ = ("_by_connection", "_partitions", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[object, dict[ShareSession, None]] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def unused(self, max_sessions: int, now_ms: int) -> ShareSession | None:
        """Return a session to close before another one is opened, if there are too many; None if it is not needed.

        Raises KafkaError(SHARE_SESSION_LIMIT_REACHED) if all of them are used.
        """
        if len(self._sessions) < max_sessions:
            return None
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or oldest.last_used_ms > now_ms - EVICTION_MS:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        return oldest

    def open(self, group_id: str, member_id: str, connection: object, now_ms: int) -> ShareSession:
        """Open the session of a member that has none."""
        session = self._sessions[group_id, member_id] = ShareSession(group_id, member_id, connection, now_ms)
        self._by_connection.setdefault(connection, {})[session] = None
        return session

    def update(
        self, session: ShareSession, added: Iterable[TopicIdPartition], forgotten: Iterable[TopicIdPartition]
    ) -> None:
        """Add and remove partitions of a session. Raises KafkaError(SHARE_SESSION_LIMIT_REACHED)."""
        before = len(session.partitions)
        session.partitions.update(dict.fromkeys(added))
        for key in forgotten:
            session.partitions.pop(key, None)
        self._partitions += len(session.partitions) - before
        if self._partitions > MAX_PARTITIONS:
            self.close(session)
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)

    def find(self, group_id: str, member_id: str) -> ShareSession | None:
        return self._sessions.get((group_id, member_id))

    def resume(self, group_id: str, member_id: str, epoch: int, now_ms: int) -> ShareSession:
        """Return the session of a request, and expect the next epoch.

        Raises KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        session = self._existing(group_id, member_id)
        if epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        session.last_used_ms = now_ms
        self._sessions[group_id, member_id] = self._sessions.pop((group_id, member_id))
        return session

    def _existing(self, group_id: str, member_id: str) -> ShareSession:
        session = self._sessions.get((group_id, member_id))
        if session is None:
            raise KafkaError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def close(self, session: ShareSession) -> None:
        session.close()
        if self._sessions.get((session.group_id, session.member_id)) is session:
            del self._sessions[session.group_id, session.member_id]
            self._partitions -= len(session.partitions)
        of_connection = self._by_connection.get(session.connection, {})
        of_connection.pop(session, None)
        if not of_connection:
            self._by_connection.pop(session.connection, None)

    def end(self, group_id: str, member_id: str) -> ShareSession:
        """Close the session of a member, whatever its epoch. Raises KafkaError(SHARE_SESSION_NOT_FOUND)."""
        session = self._existing(group_id, member_id)
        self.close(session)
        return session

    def of_connection(self, connection: object) -> list[ShareSession]:
        """Return the sessions of a connection."""
        return list(self._by_connection.get(connection, ()))
