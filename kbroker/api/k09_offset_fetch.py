"""OffsetFetch (key 9), versions 1 to 10: how far a group has read.

- Null topics (from version 2 on) mean all that the group has committed; several groups at once from version 8 on;
  topic ids from version 10 on.
- What was never committed is offset -1 and no error, whether the topic exists or not.
- require_stable (version 7, KIP-447) waits for commits that are being written, and refuses partitions of which open
  transactions have written offsets, one by one (UNSTABLE_OFFSET_COMMIT): clients ask again. A group's partitions that
  have nothing but such offsets are not among all of them.
- Errors are the group's, from version 2 on; version 1 has them in every partition.
"""

from collections.abc import Iterable
from typing import NamedTuple

from kbroker.api.context import RequestContext, Services
from kbroker.common import UNKNOWN_OFFSET, KafkaError
from kbroker.coordinator.group.offsets.group_offsets import GroupOffsets
from kbroker.coordinator.group.records import NO_EPOCH, ZERO_TOPIC_ID, OffsetAndMetadata
from kbroker.metadata.image import MetadataImage
from protocol.errors import ErrorCode
from protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

GROUP_ERROR_VERSION = 2
SEVERAL_GROUPS_VERSION = 8
TOPIC_ID_VERSION = 10

NEVER_COMMITTED = OffsetAndMetadata(UNKNOWN_OFFSET)


async def handle(services: Services, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    if context.version >= SEVERAL_GROUPS_VERSION:
        groups = [await _fetch(services, context.version, group, request.require_stable) for group in request.groups]
        return OffsetFetchResponse(groups=groups)
    group = await _fetch(services, context.version, _only_group(request), request.require_stable)
    if group.error_code != ErrorCode.NONE and context.version < GROUP_ERROR_VERSION:
        return OffsetFetchResponse(topics=_refused_topics(request, group.error_code))
    return OffsetFetchResponse(error_code=group.error_code, topics=[_old_topic(topic) for topic in group.topics])


def _only_group(request: OffsetFetchRequest) -> OffsetFetchRequestGroup:
    """The request of a version before 8 in the shape of those after."""
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


async def _fetch(
    services: Services, version: int, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    try:
        offsets = await services.groups.offsets(group.group_id, after_commits=require_stable)
        unstable = services.groups.pending_offsets(group.group_id) if require_stable else frozenset()
    except KafkaError as refusal:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=refusal.code)
    known = _Known(offsets or GroupOffsets(), unstable)
    by_id = version >= TOPIC_ID_VERSION
    if group.topics is None:
        topics = _all_topics(services.metadata, known, by_id)
    elif by_id:
        topics = [_topic_by_id(services.metadata, known, topic) for topic in group.topics]
    else:
        topics = [_topic_by_name(known, topic) for topic in group.topics]
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


class _Known(NamedTuple):
    """A group's committed offsets, and the (topic, partition)s of which the caller may not be told."""

    offsets: GroupOffsets
    unstable: frozenset[tuple[str, int]]


def _all_topics(metadata: MetadataImage, known: _Known, by_id: bool) -> list[OffsetFetchResponseTopics]:
    topics = []
    for name, partitions in known.offsets.topics.items():
        image = metadata.topics.get(name)
        if by_id and image is None:
            # A deleted topic has no id to name it by.
            continue
        topic_id = ZERO_TOPIC_ID if image is None else image.topic_id
        found = _partitions(known, name, partitions.items())
        topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=found))
    return topics


def _topic_by_name(known: _Known, topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    found = known.offsets.topics.get(topic.name, {})
    wanted = ((index, found.get(index, NEVER_COMMITTED)) for index in topic.partition_indexes)
    return OffsetFetchResponseTopics(name=topic.name, partitions=_partitions(known, topic.name, wanted))


def _topic_by_id(metadata: MetadataImage, known: _Known, topic: OffsetFetchRequestTopics) -> OffsetFetchResponseTopics:
    image = metadata.topics_by_id.get(topic.topic_id)
    if image is None:
        refused = [_partition(index, NEVER_COMMITTED, ErrorCode.UNKNOWN_TOPIC_ID) for index in topic.partition_indexes]
        return OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=refused)
    found = known.offsets.topics.get(image.name, {})
    wanted = (
        (index, _of_topic(found.get(index, NEVER_COMMITTED), topic.topic_id)) for index in topic.partition_indexes
    )
    return OffsetFetchResponseTopics(topic_id=topic.topic_id, partitions=_partitions(known, image.name, wanted))


def _of_topic(offset: OffsetAndMetadata, topic_id: bytes) -> OffsetAndMetadata:
    """An offset that was committed to an earlier topic of the same name says nothing of this one."""
    return offset if offset.topic_id in (ZERO_TOPIC_ID, topic_id) else NEVER_COMMITTED


def _partitions(
    known: _Known, topic: str, wanted: Iterable[tuple[int, OffsetAndMetadata]]
) -> list[OffsetFetchResponsePartitions]:
    unstable = known.unstable
    return [
        _partition(index, NEVER_COMMITTED, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        if unstable and (topic, index) in unstable
        else _partition(index, offset, ErrorCode.NONE)
        for index, offset in wanted
    ]


def _partition(index: int, offset: OffsetAndMetadata, error: ErrorCode) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=error,
    )


def _old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    partitions = [
        OffsetFetchResponsePartition(
            partition_index=one.partition_index,
            committed_offset=one.committed_offset,
            committed_leader_epoch=one.committed_leader_epoch,
            metadata=one.metadata,
            error_code=one.error_code,
        )
        for one in topic.partitions
    ]
    return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)


def _refused_topics(request: OffsetFetchRequest, error: int) -> list[OffsetFetchResponseTopic]:
    return [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=UNKNOWN_OFFSET,
                    committed_leader_epoch=NO_EPOCH,
                    metadata="",
                    error_code=error,
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or []
    ]
