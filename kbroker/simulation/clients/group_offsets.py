"""Offsets: those that a group commits, with or without being a member of it, and those of logs."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.simulation.checker.history import Commit, History, OffsetFetch, Outcome, TopicPartition
from kbroker.simulation.clients.connections.cluster import GROUP, NO_ID, Cluster, UnavailableError
from kbroker.simulation.clients.connections.connection import SimClientConnection
from kbroker.simulation.clients.connections.coordinator import COORDINATOR_MOVED, CoordinatorClient
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
)
from protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from protocol.messages.k23_offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

FIRST_COMMIT_WITH_INSTANCE = 7
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


class GroupOffsets:
    """The committed offsets of a group. Commits and fetches are recorded in the history."""

    def __init__(self, cluster: Cluster, history: History, process: str, group: str) -> None:
        self._cluster = cluster
        self._history = history
        self._process = process
        self._group = group

    async def commit(
        self,
        coordinator: SimClientConnection,
        membership: Membership,
        positions: Mapping[TopicPartition, OffsetAndEpoch],
    ) -> ErrorCode:
        """Make one attempt to commit. Returns the first error of any partition. Raises ConnectionLostError."""
        offsets = {tp: offset for tp, (offset, _) in positions.items()}
        action = Commit(self._group, membership.member_id, membership.generation, offsets)
        operation = self._history.begin(self._process, action)
        outcome, detail = Outcome.UNKNOWN, "ConnectionLostError"
        try:
            codes = await _commit(self._cluster, coordinator, self._group, membership, positions)
            error = next((code for code in codes if code), ErrorCode.NONE)
            detail = error.name if error else ""
            if not error:
                outcome = Outcome.OK
            elif COMMIT_REFUSED.issuperset(codes):
                outcome = Outcome.FAILED
        finally:
            self._history.end(operation, outcome, detail)
        return error

    async def committed(
        self, coordinator: SimClientConnection, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndEpoch]:
        """Return the committed offsets, -1 for none. Raises ConnectionLostError, RefusedError."""
        action = OffsetFetch(self._group)
        operation = self._history.begin(self._process, action)
        outcome = Outcome.FAILED
        try:
            found = await committed(self._cluster, coordinator, self._group, partitions)
            action.offsets = {tp: offset for tp, (offset, _) in found.items()}
            outcome = Outcome.OK
        finally:
            self._history.end(operation, outcome)
        return found


class StandaloneGroupOffsets:
    """The committed offsets of a group without members, for a standalone consumer."""

    def __init__(self, cluster: Cluster, history: History, process: str, group: str) -> None:
        self._offsets = GroupOffsets(cluster, history, process, group)
        self._coordinator = CoordinatorClient(cluster, group, GROUP)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndEpoch]:
        """Return the committed offsets, -1 for none. Raises OSError, RefusedError."""
        try:
            return await self._offsets.committed(await self._coordinator.find(), partitions)
        except RefusedError as error:
            self._handle_error(error.code)
            raise

    async def commit(self, positions: Mapping[TopicPartition, OffsetAndEpoch]) -> bool:
        """Make one attempt to commit. Returns whether it is known to have succeeded."""
        try:
            error = await self._offsets.commit(await self._coordinator.find(), Membership(), positions)
        except OSError:
            return False
        self._handle_error(error)
        return error is ErrorCode.NONE

    def _handle_error(self, code: ErrorCode) -> None:
        # After an election the former coordinator is up, and its connection is open.
        if code in COORDINATOR_MOVED:
            self._coordinator.disconnect()


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


async def committed(
    cluster: Cluster, coordinator: SimClientConnection, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetAndEpoch]:
    """Fetch committed offsets, -1 for none. Raises ConnectionLostError, RefusedError."""
    version = coordinator.version(ApiKey.OFFSET_FETCH)
    indexes: dict[str, list[int]] = {}
    for name, index in partitions:
        indexes.setdefault(name, []).append(index)
    request = OffsetFetchRequest(require_stable=version >= FIRST_STABLE)
    if version >= FIRST_WITH_GROUPS:
        topics = [
            OffsetFetchRequestTopics(name=name, topic_id=cluster.topic_ids.get(name, NO_ID), partition_indexes=found)
            for name, found in indexes.items()
        ]
        request.groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
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


LATEST, EARLIEST = -1, -2
CONSUMER = -1
NO_OFFSET = -1


class RefusedError(Exception):
    """The broker responded with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


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
