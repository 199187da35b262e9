"""The share partitions of this broker, and the sessions of the consumers that fetch them (SharePartitionManager)."""

from __future__ import annotations

from asyncio import Lock
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.coordinator.share.share_partition_state import SharePartitionKey
from kbroker.runtime.deadlines import DeadlineTimer
from kbroker.runtime.turns import paced
from kbroker.share.delivery import Acknowledgement, ShareStats
from kbroker.share.leader import AcquiredRecords, AcquireRequest, ShareGroupParts, SharePartitionLeader, client_error
from kbroker.share.session import FINAL_EPOCH, INITIAL_EPOCH, ShareSession, ShareSessionCache, TopicIdPartition
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import Future

    from kbroker.config import BrokerConfig
    from kbroker.coordinator.share.persister import ShareStatePersister
    from kbroker.metadata.image import MetadataDelta
    from kbroker.replica.fetch.read_filter import ReadView
    from kbroker.replica.partition import Partition
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment
    from kbroker.share.group_settings import GroupSettings, ShareGroupSettings

# With these errors of some partitions a request waits for records of others: they say nothing that the client can use.
WAITING_ERRORS = (ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
# What a request gets of a partition.
FetchResults = dict[TopicIdPartition, AcquiredRecords | KafkaError]


class SharePartitionManager:
    """`leaders`: the share partitions whose state this broker has read."""

    def __init__(
        self,
        environment: Environment,
        replicas: ReplicaManager,
        persister: ShareStatePersister,
        settings: ShareGroupSettings,
        config: Callable[[], BrokerConfig],
        on_dead_letters: Callable[[SharePartitionLeader], None],
    ) -> None:
        self.leaders: dict[SharePartitionKey, SharePartitionLeader] = {}
        self.sessions = ShareSessionCache()
        self.stats = ShareStats()
        self._environment = environment
        self._replicas = replicas
        self._settings = settings
        self._config = config
        self._timer = DeadlineTimer[SharePartitionLeader](
            environment.clock.mono_ms, environment.loop.call_later, SharePartitionLeader.on_deadline
        )
        self._parts = ShareGroupParts(
            environment, persister, settings.of, self._timer, Lock(), on_dead_letters, self._drop, self.stats
        )

    def settings(self, group_id: str) -> GroupSettings:
        return self._settings.of(group_id)

    # Partitions.

    def _readable_leader(self, key: TopicIdPartition) -> tuple[Partition, ReadView | None]:
        """Return a partition that this broker leads, and the view if it is one of a view. Raises KafkaError."""
        topic_id, index = key
        partition, view = self._replicas.find_readable(topic_id, index)
        if partition is None:
            raise KafkaError(self._replicas.missing_error(topic_id, index))
        if partition.is_retired:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if not partition.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition, view

    def leader(self, group_id: str, key: TopicIdPartition) -> SharePartitionLeader:
        """Return the share partition if this broker leads it. Raises KafkaError."""
        partition, view = self._readable_leader(key)
        share_key = SharePartitionKey(group_id, *key)
        known = self.leaders.get(share_key)
        if known is not None:
            if known.is_current and known.partition is partition:
                return known
            self._drop(known)
            if known.failure is not None and known.leader_epoch == partition.leader_epoch:
                # The next request reads the state again.
                raise KafkaError(client_error(known.failure.code), known.failure.message)
        created = self.leaders[share_key] = SharePartitionLeader(self._parts, share_key, partition, view)
        return created

    def _drop(self, leader: SharePartitionLeader) -> None:
        leader.stop()
        if self.leaders.get(leader.key) is leader:
            del self.leaders[leader.key]

    def on_delta(self, delta: MetadataDelta) -> None:
        """End what this broker does not lead any more."""
        for leader in list(self.leaders.values()):
            if leader.failure is None and not leader.is_current:
                self._drop(leader)

    def resign(self) -> None:
        """End all, because this broker's session has ended."""
        for leader in list(self.leaders.values()):
            self._drop(leader)

    async def stop(self) -> None:
        self._timer.stop()
        self.resign()

    # Sessions.

    def begin_fetch(
        self,
        group_id: str,
        member_id: str,
        epoch: int,
        connection: object,
        added: Sequence[TopicIdPartition],
        forgotten: Sequence[TopicIdPartition],
    ) -> ShareSession:
        """Return the session of a request that fetches. Raises KafkaError."""
        now_ms = self._environment.clock.mono_ms()
        if epoch == INITIAL_EPOCH:
            former = self.sessions.find(group_id, member_id)
            if former is not None:
                # Its locks stay: the member has them.
                self._close(former)
            unused = self.sessions.unused(self._config().group_share_max_share_sessions, now_ms)
            if unused is not None:
                self._close(unused, releases=True)
            session = self.sessions.open(group_id, member_id, connection, now_ms)
        else:
            session = self.sessions.resume(group_id, member_id, epoch, now_ms)
        self.sessions.update(session, paced(added), paced(forgotten))
        for key in paced(forgotten):
            leader = self.leaders.get(SharePartitionKey(group_id, *key))
            if leader is not None:
                leader.sessions.pop(session, None)
        return session

    def begin_acknowledgement(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """Return the session of a request that fetches nothing. The final epoch closes it. Raises KafkaError."""
        if epoch == FINAL_EPOCH:
            return self.sessions.end(group_id, member_id)
        if epoch == INITIAL_EPOCH:
            raise KafkaError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        return self.sessions.resume(group_id, member_id, epoch, self._environment.clock.mono_ms())

    async def release(self, session: ShareSession) -> None:
        """Release what the member of a closed session has."""
        for done in self._close(session, releases=True):
            await done

    def _close(self, session: ShareSession, *, releases: bool = False) -> list[Future[ErrorCode]]:
        """End a session. Returns the outcomes of the changes that release what its member has.

        If the member has another session by now, it keeps its locks, of which some may be those of the new one.
        """
        self.sessions.close(session)
        releases = releases and self.sessions.find(session.group_id, session.member_id) is None
        released = []
        for key in paced(session.partitions):
            leader = self.leaders.get(SharePartitionKey(session.group_id, *key))
            if leader is None:
                continue
            leader.sessions.pop(session, None)
            done = leader.release(session.member_id) if releases else None
            if done is None:
                leader.check_idle()
            else:
                released.append(done)
        return released

    def on_connection_closed(self, connection: object) -> None:
        """End the sessions of a connection, whose members will not acknowledge over it any more."""
        for session in self.sessions.of_connection(connection):
            self._close(session, releases=True)

    # Requests.

    def acknowledge(
        self, group_id: str, member_id: str, key: TopicIdPartition, acknowledgements: list[Acknowledgement]
    ) -> Future[ErrorCode]:
        """Acknowledge records. The future is done when that is persisted. Raises KafkaError."""
        leader = self.leaders.get(SharePartitionKey(group_id, *key))
        if leader is None or not leader.is_current:
            self._readable_leader(key)
            # A new object would know none of the member's locks.
            raise KafkaError(ErrorCode.INVALID_RECORD_STATE)
        return leader.acknowledge(member_id, acknowledgements)

    async def fetch(
        self, request: AcquireRequest, max_wait_ms: int, min_bytes: int, check_topic: Callable[[bytes], None]
    ) -> FetchResults:
        """Acquire records of the session's partitions. Waits until there are some, at most `max_wait_ms`.

        Begins when `min_bytes` are available, or at the end of the wait. Returns the partitions with records, and those
        with an error. `check_topic` raises KafkaError for a topic id from which the client may not read.
        """
        session, loop = request.session, self._environment.loop
        deadline_s = loop.time() + max_wait_ms / 1000
        request = request._replace(deadline_s=deadline_s)
        is_impossible = min(request.max_records, request.max_bytes, min_bytes) <= 0 or not session.partitions
        while True:
            session.is_woken = False
            results: FetchResults = {}
            leaders = self._leaders_of(session, check_topic, results)
            wait_s = deadline_s - loop.time()
            if wait_s <= 0 or sum([leader.available_bytes() for leader in leaders.values()]) >= min_bytes:
                await self._acquire(leaders, request, results)
                wait_s = deadline_s - loop.time()
            is_waiting = all(isinstance(each, KafkaError) and each.code in WAITING_ERRORS for each in results.values())
            if not is_waiting or is_impossible or wait_s <= 0 or session.is_closed:
                return results
            if not session.is_woken:
                await self._wait(session, wait_s)

    def _leaders_of(
        self, session: ShareSession, check_topic: Callable[[bytes], None], results: FetchResults
    ) -> dict[TopicIdPartition, SharePartitionLeader]:
        """Return the partitions of a session that this broker leads. The errors of others are added to the results."""
        leaders: dict[TopicIdPartition, SharePartitionLeader] = {}
        for key in paced(list(session.partitions)):
            try:
                check_topic(key[0])
                leaders[key] = leader = self.leader(session.group_id, key)
                leader.sessions[session] = None
            except KafkaError as error:
                results[key] = error
        return leaders

    async def _acquire(
        self,
        leaders: dict[TopicIdPartition, SharePartitionLeader],
        request: AcquireRequest,
        results: FetchResults,
    ) -> None:
        """Acquire records of one partition after the other."""
        records_left, bytes_left = request.max_records, request.max_bytes
        for number, (key, leader) in enumerate(leaders.items()):
            if records_left <= 0 or bytes_left <= 0 or request.session.is_closed:
                break
            part = max(bytes_left // (len(leaders) - number), 1)
            try:
                found = await leader.acquire(request._replace(max_records=records_left, max_bytes=part))
            except KafkaError as error:
                results[key] = error
                continue
            if found.acquired:
                results[key] = found
                records_left -= found.record_count
                bytes_left -= len(found.records)
                request.session.move_to_end(key)

    async def _wait(self, session: ShareSession, wait_s: float) -> None:
        waiting = self._environment.loop.create_future()

        def wake() -> None:
            if not waiting.done():
                waiting.set_result(None)

        timer = self._environment.loop.call_later(wait_s, wake)
        session.waiter = wake
        try:
            await waiting
        finally:
            session.waiter = None
            timer.cancel()
