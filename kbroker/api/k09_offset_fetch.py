"""OffsetFetch (key 9), versions 1 to 10: the committed offsets of groups.

- Version 2 adds null topics, which mean all topics with committed offsets; version 8 adds requests for several groups;
  version 10 adds topic ids.
- A partition without a committed offset has offset -1 and no error, whether its topic exists or not.
- require_stable (version 7, KIP-447) waits for commits in flight. A partition for which an open transaction has written
  an offset gets UNSTABLE_OFFSET_COMMIT, and the client retries; with null topics it is only returned if it also has a
  committed offset.
- An error applies to the whole group; in version 1 it is in every partition.
"""

from collections.abc import Iterable, Mapping

from kbroker.api.context import RequestContext, Services
from kbroker.common import UNKNOWN_OFFSET, KafkaError
from kbroker.coordinator.group.offset_metadata_manager import FetchedOffsets
from kbroker.coordinator.group.records import ZERO_TOPIC_ID, OffsetAndMetadata
from kbroker.metadata.image import MetadataImage
from kbroker.runtime.slices import Steps, drained, each, in_slices, release, step
from protocol.errors import ErrorCode
from protocol.messages.k09_offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
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

NOT_COMMITTED = OffsetAndMetadata(UNKNOWN_OFFSET)


async def handle(services: Services, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
    version = context.version
    if version >= SEVERAL_GROUPS_VERSION:
        response = OffsetFetchResponse()
        # Groups of which all offsets are requested. A group that is named 10,000 times is returned as often, but is
        # in memory once.
        known: dict[str, OffsetFetchResponseGroup] = {}
        for requested in request.groups:
            group = known.get(requested.group_id) if requested.topics is None else None
            if group is None:
                group = await _fetch(services, context, requested, request.require_stable)
                if requested.topics is None:
                    known[requested.group_id] = group
            response.groups.append(group)
            await step(context.slices)
        return response
    requested = await in_slices(context.slices, _single_group(request))
    group = await _fetch(services, context, requested, request.require_stable)
    if group.error_code != ErrorCode.NONE and version < GROUP_ERROR_VERSION:
        for topic in requested.topics or ():
            group.topics.append(await in_slices(context.slices, _topic_with_error(topic, group.error_code)))
            await step(context.slices)
    await in_slices(context.slices, release(requested.topics or []))
    topics = await in_slices(context.slices, _old_topics(drained(group.topics)))
    return OffsetFetchResponse(error_code=group.error_code, topics=topics)


def is_large(services: Services, context: RequestContext, request: OffsetFetchRequest) -> bool:
    """A group may have offsets of all partitions."""
    return any(group.topics is None for group in request.groups) if request.groups else request.topics is None


def _single_group(request: OffsetFetchRequest) -> Steps[OffsetFetchRequestGroup]:
    """Return the group of a request below version 8 in the form of later versions."""
    topics = None
    if request.topics is not None:
        topics = yield from each(_newer_topic, request.topics)
    return OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)


def _newer_topic(topic: OffsetFetchRequestTopic) -> OffsetFetchRequestTopics:
    return OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)


async def _fetch(
    services: Services, context: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    try:
        offsets = await services.groups.fetch_offsets(
            group.group_id, group.member_id, group.member_epoch, require_stable=require_stable
        )
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    steps = _topics(services.metadata, offsets, group.topics, by_id=context.version >= TOPIC_ID_VERSION)
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=await in_slices(context.slices, steps))


def _topics(
    metadata: MetadataImage, offsets: FetchedOffsets, requested: list[OffsetFetchRequestTopics] | None, by_id: bool
) -> Steps[list[OffsetFetchResponseTopics]]:
    if requested is None:
        return (yield from _all_topics(metadata, offsets, by_id))
    topics = []
    for topic in requested:
        topics.append((yield from _topic(metadata, offsets, topic, by_id)))
        yield
    return topics


def _all_topics(
    metadata: MetadataImage, offsets: FetchedOffsets, by_id: bool
) -> Steps[list[OffsetFetchResponseTopics]]:
    topics = []
    for name, partitions in offsets.topics.items():
        image = metadata.topics.get(name)
        if by_id and image is None:
            # A deleted topic has no id.
            continue
        topic_id = ZERO_TOPIC_ID if image is None else image.topic_id
        found = yield from _partitions(offsets, name, partitions, partitions)
        topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=found))
    return topics


def _topic(
    metadata: MetadataImage, offsets: FetchedOffsets, topic: OffsetFetchRequestTopics, by_id: bool
) -> Steps[OffsetFetchResponseTopics]:
    if not by_id:
        committed = offsets.topics.get(topic.name, {})
        partitions = yield from _partitions(offsets, topic.name, topic.partition_indexes, committed)
        return _topic_response(topic, partitions)
    image = metadata.topics_by_id.get(topic.topic_id)
    if image is None:
        return (yield from _topic_with_error(topic, ErrorCode.UNKNOWN_TOPIC_ID))
    # Offsets of an earlier topic of the same name do not count.
    committed = {
        index: offset
        for index, offset in offsets.topics.get(image.name, {}).items()
        if offset.topic_id in (ZERO_TOPIC_ID, topic.topic_id)
    }
    partitions = yield from _partitions(offsets, image.name, topic.partition_indexes, committed)
    return _topic_response(topic, partitions)


def _topic_with_error(topic: OffsetFetchRequestTopics, error: int) -> Steps[OffsetFetchResponseTopics]:
    partitions = yield from each(lambda index: _partition(index, NOT_COMMITTED, error), topic.partition_indexes)
    return _topic_response(topic, partitions)


def _topic_response(
    topic: OffsetFetchRequestTopics, partitions: list[OffsetFetchResponsePartitions]
) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _partitions(
    offsets: FetchedOffsets, topic: str, indexes: Iterable[int], committed: Mapping[int, OffsetAndMetadata]
) -> Steps[list[OffsetFetchResponsePartitions]]:
    partitions = []
    for index in indexes:
        if offsets.unstable and (topic, index) in offsets.unstable:
            partitions.append(_partition(index, NOT_COMMITTED, ErrorCode.UNSTABLE_OFFSET_COMMIT))
        else:
            partitions.append(_partition(index, committed.get(index, NOT_COMMITTED), ErrorCode.NONE))
        yield
    return partitions


def _partition(index: int, offset: OffsetAndMetadata, error: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=error,
    )


def _old_topics(topics: Iterable[OffsetFetchResponseTopics]) -> Steps[list[OffsetFetchResponseTopic]]:
    """Return topics of the response in the form of versions below 8."""
    old = []
    for topic in topics:
        partitions = yield from each(_old_partition, topic.partitions)
        old.append(OffsetFetchResponseTopic(name=topic.name, partitions=partitions))
        yield
    return old


def _old_partition(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )
