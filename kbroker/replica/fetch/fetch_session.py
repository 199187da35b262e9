"""Fetch sessions (KIP-227): what a consumer fetches, remembered between its requests.

A session keeps the set of its partitions that may have something to say (`ready`). Partitions add themselves when
their high watermark moves, so an incremental fetch costs what has changed and not what is watched. A request
without a session is served by the same code on a session that is thrown away.
"""

from collections import OrderedDict
from random import Random
from typing import Any

from kbroker.common import KafkaError
from protocol.errors import ErrorCode
from protocol.fast.fetch import FetchedPartition, TopicKey

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
MAX_EPOCH = 2**31 - 1


class FetchPartition:
    """One partition of a session: what the client wants, and what it was told last."""

    __slots__ = ("current_epoch", "index", "key", "last_epoch", "max_bytes", "offset", "session", "target", "told")

    def __init__(self, session: "FetchSession", key: TopicKey, wanted: FetchedPartition) -> None:
        self.session = session
        self.key = key
        self.index, self.current_epoch, self.offset, self.last_epoch, self.max_bytes = wanted
        # The replica that serves it, attached by the replica room; None while there is none.
        self.target: Any = None
        # (high watermark, log start offset) of the last answer; None when the next one must mention it.
        self.told: tuple[int, int] | None = None

    def want(self, wanted: FetchedPartition) -> None:
        _, self.current_epoch, self.offset, self.last_epoch, self.max_bytes = wanted


class FetchSession:
    """The partitions of one consumer or, with id 0, of one request. `over`: it was closed or evicted."""

    __slots__ = ("by_id", "epoch", "id", "incremental", "last_used_ms", "over", "partitions", "ready", "waiter")

    def __init__(self, session_id: int, by_id: bool, now_ms: int) -> None:
        self.id = session_id
        self.by_id = by_id
        self.epoch = INITIAL_EPOCH + 1
        self.incremental = False
        self.over = False
        self.last_used_ms = now_ms
        self.partitions: dict[tuple[TopicKey, int], FetchPartition] = {}
        self.ready: dict[FetchPartition, None] = {}
        self.waiter: Any = None

    def apply(
        self,
        topics: list[tuple[TopicKey, list[FetchedPartition]]],
        forgotten: list[tuple[TopicKey, list[int]]],
    ) -> tuple[list[FetchPartition], list[FetchPartition]]:
        """Take a request's partitions over; gives (those that are new, those that left)."""
        added = []
        for key, wanted_partitions in topics:
            for wanted in wanted_partitions:
                address = (key, wanted[0])
                found = self.partitions.get(address)
                if found is None:
                    found = self.partitions[address] = FetchPartition(self, key, wanted)
                    added.append(found)
                else:
                    found.want(wanted)
                self.ready[found] = None
        removed = []
        # A request that is no continuation has nothing to forget.
        for key, indexes in forgotten if self.incremental else ():
            for index in indexes:
                gone = self.partitions.pop((key, index), None)
                if gone is not None:
                    self.ready.pop(gone, None)
                    removed.append(gone)
        return added, removed

    def served(self, partition: FetchPartition) -> None:
        """It had its turn: others go first next time, so that one busy partition starves nobody."""
        self.ready.pop(partition, None)
        self.ready[partition] = None

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1


class FetchSessionCache:
    """At most `slots` sessions (max.incremental.fetch.session.cache.slots), the least recently used first.

    A full cache gives up a session that has been idle for `eviction_ms`; when there is none, the newcomer gets no
    session and sends whole requests, as with Kafka.
    """

    __slots__ = ("_random", "_sessions", "eviction_ms", "slots")

    def __init__(self, slots: int, random: Random, eviction_ms: int = 120_000) -> None:
        self.slots = slots
        self.eviction_ms = eviction_ms
        self._random = random
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[FetchSession]:
        """To look at."""
        return list(self._sessions.values())

    def create(self, by_id: bool, now_ms: int) -> tuple[FetchSession, FetchSession | None]:
        """A new session, of id 0 when there is no room; and the session that was evicted for it."""
        evicted = None
        if len(self._sessions) >= self.slots:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms < self.eviction_ms:
                return FetchSession(0, by_id, now_ms), None
            evicted = self._sessions.pop(oldest.id)
        session_id = 0
        while session_id == 0 or session_id in self._sessions:
            session_id = self._random.randrange(1, 2**31)
        session = self._sessions[session_id] = FetchSession(session_id, by_id, now_ms)
        return session, evicted

    def resume(self, session_id: int, epoch: int, by_id: bool, now_ms: int) -> FetchSession:
        """The session that an incremental request continues; raises KafkaError with KIP-227's codes."""
        session = self._sessions.get(session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.by_id != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        if session.epoch != epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.last_used_ms = now_ms
        session.next_epoch()
        session.incremental = True
        self._sessions.move_to_end(session_id)
        return session

    def remove(self, session_id: int) -> FetchSession | None:
        return self._sessions.pop(session_id, None)
