"""Offsets: those that a group commits, with or without being a member of it or in a transaction, and those of logs."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.client.requests import GROUP, by_topic
from kbroker.simulation.checker.history import Commit, History, OffsetFetch, Outcome, TopicPartition
from kbroker.simulation.clients.cluster import (
    COORDINATOR_MOVED,
    NO_EPOCH,
    NO_ID,
    Attempts,
    Cluster,
    CoordinatorClient,
    RefusedError,
    UnavailableError,
)
from kbroker.simulation.clients.connection import SimClientConnection
from kbroker.simulation.clients.transactional import (
    VERSION_2,
    AbortableError,
    TransactionalProducer,
    first_error,
    transaction_error,
)
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k08_offset_commits import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from protocol.messages.k22_transactions import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

FIRST_COMMIT_WITH_INSTANCE = 7
# Of TxnOffsetCommit.
LAST_WITH_NAMES = 5
FIRST_FETCH_WITH_ID = 10
FIRST_WITH_GROUPS = 8
FIRST_STABLE = 7
# With these errors a commit has not been written. Other errors may follow the append to the log.
COMMIT_REFUSED = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
    }
)

# (offset, leader epoch of the record before it, or -1)
OffsetAndEpoch = tuple[int, int]


class Membership(NamedTuple):
    """The identity of the group member that commits. The defaults are those of a client that is no member."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


NO_MEMBER = Membership()


class GroupOffsets:
    """The committed offsets of a group, for a member of it or another client, with the connection to the coordinator.

    Commits and fetches are recorded in the history.
    """

    def __init__(self, cluster: Cluster, history: History, process: str, group: str) -> None:
        self._coordinator = CoordinatorClient(cluster, group, GROUP)
        # The heartbeats and the commits of a member share the connection.
        self._lock = asyncio.Lock()
        self._cluster = cluster
        self._history = history
        self._process = process
        self._group = group

    async def coordinator(self) -> SimClientConnection:
        """Return a connection to the coordinator. Raises OSError."""
        async with self._lock:
            return await self._coordinator.find()

    def disconnect(self) -> None:
        """Close the connection to the coordinator. The next request looks it up again."""
        self._coordinator.disconnect()

    async def commit(
        self, positions: Mapping[TopicPartition, OffsetAndEpoch], membership: Membership = NO_MEMBER
    ) -> ErrorCode | None:
        """Make one attempt to commit. Returns the first error of any partition, None without a response."""
        try:
            connection = await self.coordinator()
        except OSError:
            return None
        offsets = {tp: offset for tp, (offset, _) in positions.items()}
        action = Commit(self._group, membership.member_id, membership.generation, offsets)
        operation = self._history.begin(self._process, action)
        outcome, detail = Outcome.UNKNOWN, "ConnectionLostError"
        try:
            codes = await _commit(self._cluster, connection, self._group, membership, positions)
            error = next((code for code in codes if code), ErrorCode.NONE)
            detail = error.name if error else ""
            if not error:
                outcome = Outcome.OK
            elif COMMIT_REFUSED.issuperset(codes):
                outcome = Outcome.FAILED
        except OSError:
            return None
        finally:
            self._history.end(operation, outcome, detail)
        self._handle_error(error)
        return error

    async def committed(
        self, partitions: Iterable[TopicPartition], membership: Membership = NO_MEMBER
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """Return the committed offsets, -1 for none. Raises OSError, RefusedError."""
        connection = await self.coordinator()
        action = OffsetFetch(self._group)
        operation = self._history.begin(self._process, action)
        outcome = Outcome.FAILED
        try:
            found = await _committed(self._cluster, connection, self._group, partitions, membership)
            action.offsets = {tp: offset for tp, (offset, _) in found.items()}
            outcome = Outcome.OK
        except RefusedError as error:
            self._handle_error(error.code)
            raise
        finally:
            self._history.end(operation, outcome)
        return found

    def _handle_error(self, code: ErrorCode) -> None:
        # After an election the former coordinator is up, and its connection is open.
        if code in COORDINATOR_MOVED:
            self.disconnect()


async def _commit(
    cluster: Cluster,
    coordinator: SimClientConnection,
    group: str,
    membership: Membership,
    offsets: Mapping[TopicPartition, OffsetAndEpoch],
) -> list[ErrorCode]:
    """Commit offsets. Returns the error of each partition. Raises ConnectionLostError."""
    version = coordinator.version(ApiKey.OFFSET_COMMIT)
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, index), (offset, epoch) in offsets.items():
        topic = topics.get(name)
        if topic is None:
            topic = OffsetCommitRequestTopic(name=name, topic_id=cluster.topic_ids.get(name, NO_ID))
            topics[name] = topic
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_leader_epoch=epoch, committed_metadata=""
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id if version >= FIRST_COMMIT_WITH_INSTANCE else None,
        topics=list(topics.values()),
    )
    response = await coordinator.request(request, OffsetCommitResponse, version=version)
    return [ErrorCode(partition.error_code) for topic in response.topics for partition in topic.partitions]


async def _committed(
    cluster: Cluster,
    coordinator: SimClientConnection,
    group: str,
    partitions: Iterable[TopicPartition],
    membership: Membership,
) -> dict[TopicPartition, OffsetAndEpoch]:
    """Fetch committed offsets, -1 for none. Raises ConnectionLostError, RefusedError."""
    version = coordinator.version(ApiKey.OFFSET_FETCH)
    indexes = by_topic(partitions)
    request = OffsetFetchRequest(require_stable=version >= FIRST_STABLE)
    if version >= FIRST_WITH_GROUPS:
        topics = [
            OffsetFetchRequestTopics(name=name, topic_id=cluster.topic_ids.get(name, NO_ID), partition_indexes=found)
            for name, found in indexes.items()
        ]
        request.groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
        if membership is not NO_MEMBER:
            request.groups[0].member_id, request.groups[0].member_epoch = membership.member_id, membership.generation
    else:
        request.group_id = group
        request.topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=found) for name, found in indexes.items()
        ]
    response = await coordinator.request(request, OffsetFetchResponse, version=version)
    error = response.groups[0].error_code if version >= FIRST_WITH_GROUPS else response.error_code
    if error:
        raise RefusedError(error)
    found_offsets: dict[TopicPartition, OffsetAndEpoch] = {}
    for topic in response.groups[0].topics if version >= FIRST_WITH_GROUPS else response.topics:
        topic_id = getattr(topic, "topic_id", NO_ID)
        name = cluster.topic_names.get(topic_id, "") if version >= FIRST_FETCH_WITH_ID else topic.name
        for partition in topic.partitions:
            if partition.error_code:
                raise RefusedError(partition.error_code)
            found_offsets[name, partition.partition_index] = (
                partition.committed_offset,
                partition.committed_leader_epoch,
            )
    return found_offsets


# Offsets of logs.

LATEST, EARLIEST = -1, -2
CONSUMER = -1
NO_OFFSET = -1


async def list_offset(
    cluster: Cluster, tp: TopicPartition, timestamp: int, *, committed_only: bool = False
) -> tuple[int, int]:
    """Return (offset, leader epoch or -1) of the log start or end. Raises OSError, also for retriable errors."""
    connection = await cluster.leader(tp)
    partition = ListOffsetsPartition(partition_index=tp[1], timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=CONSUMER, topics=[ListOffsetsTopic(name=tp[0], partitions=[partition])], timeout_ms=5_000
    )
    if connection.version(ApiKey.LIST_OFFSETS) >= 2:
        request.isolation_level = int(committed_only)
    response = (await connection.request(request, ListOffsetsResponse)).topics[0].partitions[0]
    if response.error_code:
        cluster.forget_leader(tp)
        raise UnavailableError(ErrorCode(response.error_code).name)
    return response.offset, response.leader_epoch


async def start_offsets(
    cluster: Cluster, partitions: Iterable[TopicPartition], committed: Mapping[TopicPartition, OffsetAndEpoch]
) -> dict[TopicPartition, OffsetAndEpoch]:
    """Return the committed offsets, or else the log start offsets. Raises OSError."""
    starts = {}
    for tp in partitions:
        offset, epoch = committed.get(tp, (NO_OFFSET, NO_EPOCH))
        if offset == NO_OFFSET:
            offset, epoch = (await list_offset(cluster, tp, EARLIEST))[0], NO_EPOCH
        starts[tp] = offset, epoch
    return starts


async def epoch_end_offset(cluster: Cluster, tp: TopicPartition, leader_epoch: int, epoch: int) -> tuple[int, int]:
    """Return (epoch, end offset) of the largest epoch up to `epoch` in the leader's log, -1 for both if there is none.

    Raises OSError.
    """
    connection = await cluster.leader(tp)
    partition = OffsetForLeaderPartition(partition=tp[1], current_leader_epoch=leader_epoch, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=CONSUMER, topics=[OffsetForLeaderTopic(topic=tp[0], partitions=[partition])]
    )
    response = (await connection.request(request, OffsetForLeaderEpochResponse)).topics[0].partitions[0]
    if response.error_code:
        cluster.forget_leader(tp)
        raise UnavailableError(ErrorCode(response.error_code).name)
    return response.leader_epoch, response.end_offset


# Offsets that are committed in a transaction, with the group's generation (KIP-447).


async def send_offsets(
    producer: TransactionalProducer,
    group: str,
    membership: Membership,
    positions: Mapping[TopicPartition, OffsetAndEpoch],
) -> None:
    """Commit offsets with the transaction. Raises AbortableError, FatalError; both also fail the transaction."""
    offsets = {tp: offset for tp, (offset, _) in positions.items()}
    action = Commit(group, membership.member_id, membership.generation, offsets, producer.transaction)
    operation = producer.history.begin(producer.process, action)
    attempts = Attempts()
    outcome, detail = Outcome.UNKNOWN, "cancelled"
    try:
        code = ErrorCode.NONE
        if producer.version < VERSION_2:
            code = await _add_offsets(producer, group)
        if not code:
            producer.started = True
            code = await _commit_in_transaction(producer, group, membership, positions, attempts)
        outcome, detail = attempts.outcome(code), code.name if code else ""
    except TimeoutError:
        outcome, detail = attempts.outcome(ErrorCode.REQUEST_TIMED_OUT), "TimeoutError"
        producer.fail(AbortableError("offsets not committed in time"))
        raise AbortableError("offsets not committed in time") from None
    finally:
        producer.history.end(operation, outcome, detail)
    if code:
        producer.fail(transaction_error(code))
        raise transaction_error(code)


async def _add_offsets(producer: TransactionalProducer, group: str) -> ErrorCode:
    """Add the group's partition of __consumer_offsets to the transaction (version 1)."""
    producer_id, epoch = producer.identity
    request = AddOffsetsToTxnRequest(
        transactional_id=producer.transactional_id, producer_id=producer_id, producer_epoch=epoch, group_id=group
    )

    async def attempt(connection: SimClientConnection) -> ErrorCode:
        return ErrorCode((await connection.request(request, AddOffsetsToTxnResponse)).error_code)

    return await producer.request(producer.coordinator, attempt, Attempts())


async def _commit_in_transaction(
    producer: TransactionalProducer,
    group: str,
    membership: Membership,
    positions: Mapping[TopicPartition, OffsetAndEpoch],
    attempts: Attempts,
) -> ErrorCode:
    async def attempt(connection: SimClientConnection) -> ErrorCode:
        version = producer.request_version(connection, ApiKey.TXN_OFFSET_COMMIT)
        request = _transactional_commit(producer, group, membership, positions)
        if any(topic.topic_id == NO_ID for topic in request.topics):
            # As the Java client does. The producer need not know the topics that its program reads.
            version = min(version, LAST_WITH_NAMES)
        response = await connection.request(request, TxnOffsetCommitResponse, version=version)
        return first_error(
            ErrorCode(partition.error_code) for topic in response.topics for partition in topic.partitions
        )

    coordinator = CoordinatorClient(producer.cluster, group, GROUP)
    try:
        return await producer.request(coordinator, attempt, attempts)
    finally:
        coordinator.disconnect()


def _transactional_commit(
    producer: TransactionalProducer,
    group: str,
    membership: Membership,
    positions: Mapping[TopicPartition, OffsetAndEpoch],
) -> TxnOffsetCommitRequest:
    topics: dict[str, TxnOffsetCommitRequestTopic] = {}
    for (name, index), (offset, leader_epoch) in positions.items():
        topic_id = producer.cluster.topic_ids.get(name, NO_ID)
        topic = topics.setdefault(name, TxnOffsetCommitRequestTopic(name=name, topic_id=topic_id))
        topic.partitions.append(
            TxnOffsetCommitRequestPartition(
                partition_index=index,
                committed_offset=offset,
                committed_leader_epoch=leader_epoch,
                committed_metadata="",
            )
        )
    return TxnOffsetCommitRequest(
        transactional_id=producer.transactional_id,
        group_id=group,
        producer_id=producer.identity[0],
        producer_epoch=producer.identity[1],
        generation_id_or_member_epoch=membership.generation,
        member_id=membership.member_id,
        group_instance_id=membership.instance_id,
        topics=list(topics.values()),
    )
