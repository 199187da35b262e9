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

# A topic id and a partition.
TopicIdPartition = tuple[bytes, int]


class ShareSession:
    """`connection`: the one over which it was opened. `epoch`: that of the next request.

    `waiter`: called when a request that waits should look again. `is_woken`: it should, although it does not wait yet.
    """

    __slots__ = (
        "connection", "epoch", "group_id", "is_closed", "is_woken", "member_id", "partitions", "waiter",
    )  # fmt: skip

    def __init__(self, group_id: str, member_id: str, connection: object) -> None:
        self.group_id = group_id
        self.member_id = member_id
        self.connection = connection
        self.epoch = 1
        self.is_closed = self.is_woken = False
        self.waiter: Callable[[], None] | None = None
        # The one that was fetched last is the last.
        self.partitions: dict[TopicIdPartition, None] = {}

    def update(self, added: Iterable[TopicIdPartition], forgotten: Iterable[TopicIdPartition]) -> None:
        self.partitions.update(dict.fromkeys(added))
        for key in forgotten:
            self.partitions.pop(key, None)

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
    """The sessions of this broker, at most one for each member of a group."""

    __slots__ = ("_by_connection", "_sessions")

    def __init__(self) -> None:
        self._sessions: dict[tuple[str, str], ShareSession] = {}
        self._by_connection: dict[object, dict[ShareSession, None]] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, group_id: str, member_id: str, connection: object, max_sessions: int) -> ShareSession:
        """Open the session of a member that has none. Raises KafkaError(SHARE_SESSION_LIMIT_REACHED)."""
        if len(self._sessions) >= max_sessions:
            raise KafkaError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = self._sessions[group_id, member_id] = ShareSession(group_id, member_id, connection)
        self._by_connection.setdefault(connection, {})[session] = None
        return session

    def find(self, group_id: str, member_id: str) -> ShareSession | None:
        return self._sessions.get((group_id, member_id))

    def resume(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """Return the session of a request, and expect the next epoch.

        Raises KafkaError: SHARE_SESSION_NOT_FOUND, INVALID_SHARE_SESSION_EPOCH.
        """
        session = self._existing(group_id, member_id)
        if epoch != session.epoch:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
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
