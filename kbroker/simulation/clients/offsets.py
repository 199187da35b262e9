"""Questions about offsets: where a partition begins and ends, where a leader epoch ended, what a group committed."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from kbroker.simulation.clients.bootstrap import NO_ID, AbsentError, Cluster
from kbroker.simulation.clients.connection import Connection
from kbroker.simulation.history import Place
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k08_offset_commit import (
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

LATEST, EARLIEST = -1, -2
CONSUMER = -1
NO_OFFSET = -1
FIRST_COMMIT_WITH_ID = FIRST_FETCH_WITH_ID = 10
FIRST_COMMIT_WITH_INSTANCE = 7
FIRST_WITH_GROUPS = 8
FIRST_STABLE = 7


class RefusedError(Exception):
    """The broker has answered with an error."""

    def __init__(self, code: int) -> None:
        super().__init__(ErrorCode(code).name)
        self.code = ErrorCode(code)


class Membership(NamedTuple):
    """Who commits. A client outside of any generation has none of these."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


async def list_offset(cluster: Cluster, place: Place, at: int, *, committed_only: bool = False) -> tuple[int, int]:
    """(offset, leader epoch or -1) of the beginning or the end. Raises OSError, also for what may pass."""
    connection = await cluster.leader(place)
    wanted = ListOffsetsPartition(partition_index=place[1], timestamp=at)
    request = ListOffsetsRequest(
        replica_id=CONSUMER, topics=[ListOffsetsTopic(name=place[0], partitions=[wanted])], timeout_ms=5_000
    )
    if connection.version(ApiKey.LIST_OFFSETS) >= 2:
        request.isolation_level = int(committed_only)
    answer = (await connection.ask(request, ListOffsetsResponse)).topics[0].partitions[0]
    if answer.error_code:
        cluster.forget(place)
        raise AbsentError(ErrorCode(answer.error_code).name)
    return answer.offset, answer.leader_epoch


async def end_of_epoch(cluster: Cluster, place: Place, leader_epoch: int, epoch: int) -> tuple[int, int]:
    """(epoch, its end offset): where the log of the leader with `leader_epoch` has records up to `epoch`; -1 for both
    if it knows nothing of it. Raises OSError."""
    connection = await cluster.leader(place)
    wanted = OffsetForLeaderPartition(partition=place[1], current_leader_epoch=leader_epoch, leader_epoch=epoch)
    request = OffsetForLeaderEpochRequest(
        replica_id=CONSUMER, topics=[OffsetForLeaderTopic(topic=place[0], partitions=[wanted])]
    )
    answer = (await connection.ask(request, OffsetForLeaderEpochResponse)).topics[0].partitions[0]
    if answer.error_code:
        cluster.forget(place)
        raise AbsentError(ErrorCode(answer.error_code).name)
    return answer.leader_epoch, answer.end_offset


async def commit(
    cluster: Cluster,
    coordinator: Connection,
    group: str,
    who: Membership,
    offsets: Mapping[Place, tuple[int, int]],
) -> list[ErrorCode]:
    """Commit (offset, leader epoch) of partitions; gives the error of each. Raises LostError."""
    version = coordinator.version(ApiKey.OFFSET_COMMIT)
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for (name, index), (offset, epoch) in offsets.items():
        topic = topics.get(name)
        if topic is None:
            topic = OffsetCommitRequestTopic(name=name, topic_id=cluster.ids.get(name, NO_ID))
            topics[name] = topic
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_leader_epoch=epoch, committed_metadata=""
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=who.generation,
        member_id=who.member_id,
        group_instance_id=who.instance_id if version >= FIRST_COMMIT_WITH_INSTANCE else None,
        topics=list(topics.values()),
    )
    answer = await coordinator.ask(request, OffsetCommitResponse, version=version)
    return [ErrorCode(one.error_code) for topic in answer.topics for one in topic.partitions]


async def committed(
    cluster: Cluster, coordinator: Connection, group: str, places: Iterable[Place]
) -> dict[Place, tuple[int, int]]:
    """(offset, leader epoch) that a group has committed, -1 for nothing. Raises LostError, RefusedError."""
    version = coordinator.version(ApiKey.OFFSET_FETCH)
    indexes: dict[str, list[int]] = {}
    for name, index in places:
        indexes.setdefault(name, []).append(index)
    request = OffsetFetchRequest(require_stable=version >= FIRST_STABLE)
    if version >= FIRST_WITH_GROUPS:
        topics = [
            OffsetFetchRequestTopics(name=name, topic_id=cluster.ids.get(name, NO_ID), partition_indexes=found)
            for name, found in indexes.items()
        ]
        request.groups = [OffsetFetchRequestGroup(group_id=group, topics=topics)]
    else:
        request.group_id = group
        request.topics = [
            OffsetFetchRequestTopic(name=name, partition_indexes=found) for name, found in indexes.items()
        ]
    answer = await coordinator.ask(request, OffsetFetchResponse, version=version)
    error = answer.groups[0].error_code if version >= FIRST_WITH_GROUPS else answer.error_code
    if error:
        raise RefusedError(error)
    found_offsets: dict[Place, tuple[int, int]] = {}
    for topic in answer.groups[0].topics if version >= FIRST_WITH_GROUPS else answer.topics:
        topic_id = getattr(topic, "topic_id", NO_ID)
        name = cluster.names.get(topic_id, "") if version >= FIRST_FETCH_WITH_ID else topic.name
        for one in topic.partitions:
            if one.error_code:
                raise RefusedError(one.error_code)
            found_offsets[name, one.partition_index] = (one.committed_offset, one.committed_leader_epoch)
    return found_offsets
