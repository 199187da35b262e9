"""OffsetFetch (key 9), versions 1 to 10: the committed offsets of groups.

- Version 2 adds null topics, which mean all topics with committed offsets; version 8 adds requests for several groups;
  version 10 adds topic ids.
- A partition without a committed offset has offset -1 and no error, whether its topic exists or not.
- require_stable (version 7, KIP-447) waits for commits in flight. A partition for which an open transaction has written
  an offset gets UNSTABLE_OFFSET_COMMIT, and the client retries; with null topics it is only returned if it also has a
  committed offset.
- An error applies to the whole group; in version 1 it is in every partition.
- With ACLs each group and each topic needs DESCRIBE. Null topics leave out those without it.
"""

from collections.abc import Awaitable, Iterable, Mapping

from kbroker.api.authorization import require
from kbroker.api.context import RequestContext, Services
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.authorization.authorizer import Access
from kbroker.common import UNKNOWN_OFFSET, KafkaError
from kbroker.coordinator.group.offset_metadata_manager import FetchedOffsets
from kbroker.coordinator.group.records import ZERO_TOPIC_ID, OffsetAndMetadata
from kbroker.metadata.image import MetadataImage
from kbroker.runtime.turns import drained, paced, release, yield_if_due
from protocol.errors import NO_ERROR, ErrorCode
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

# A group may have offsets of all partitions.
RUNS_IN_TURNS = True

GROUP_ERROR_VERSION = 2
SEVERAL_GROUPS_VERSION = 8
TOPIC_ID_VERSION = 10

NOT_COMMITTED = OffsetAndMetadata(UNKNOWN_OFFSET)
NOTHING: Mapping[int, OffsetAndMetadata] = {}


def handle(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Awaitable[OffsetFetchResponse]:
    """Respond at once to a request for one group, which most are, unless commits of the group are in flight."""
    if len(request.groups) == 1:
        [group] = request.groups
        try:
            require(services, context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
            offsets = services.groups.fetch_offsets_at_once(
                group.group_id, group.member_id, group.member_epoch, require_stable=request.require_stable
            )
        except KafkaError as error:
            failed = OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
            return OffsetFetchResponse(groups=[failed])
        if offsets is not None:
            return OffsetFetchResponse(groups=[_group(services, context, group, offsets)])
    return _fetch_groups(services, context, request)


async def _fetch_groups(
    services: Services, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
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
            yield_if_due()
        return response
    requested = OffsetFetchRequestGroup(group_id=request.group_id, topics=None)
    if request.topics is not None:
        requested.topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in paced(request.topics)
        ]
    group = await _fetch(services, context, requested, request.require_stable)
    if group.error_code != ErrorCode.NONE and version < GROUP_ERROR_VERSION:
        group.topics = [_topic_with_error(topic, group.error_code) for topic in paced(requested.topics or ())]
    release(requested.topics or [])
    topics = [_old_topic(topic) for topic in drained(group.topics)]
    return OffsetFetchResponse(error_code=group.error_code, topics=topics)


async def _fetch(
    services: Services, context: RequestContext, group: OffsetFetchRequestGroup, require_stable: bool
) -> OffsetFetchResponseGroup:
    try:
        require(services, context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
        offsets = await services.groups.fetch_offsets(
            group.group_id, group.member_id, group.member_epoch, require_stable=require_stable
        )
    except KafkaError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error.code)
    return _group(services, context, group, offsets)


def _group(
    services: Services, context: RequestContext, group: OffsetFetchRequestGroup, offsets: FetchedOffsets
) -> OffsetFetchResponseGroup:
    metadata, by_id, access = services.metadata, context.version >= TOPIC_ID_VERSION, context.access(services)
    if group.topics is None:
        topics = _all_topics(metadata, offsets, by_id, access)
    else:
        topics = [_topic(metadata, offsets, topic, by_id, access) for topic in paced(group.topics)]
    return OffsetFetchResponseGroup(group_id=group.group_id, topics=topics)


def _may_describe(access: Access | None, topic: str) -> bool:
    return access is None or access.allows(Operation.DESCRIBE, ResourceType.TOPIC, topic)


def _all_topics(
    metadata: MetadataImage, offsets: FetchedOffsets, by_id: bool, access: Access | None
) -> list[OffsetFetchResponseTopics]:
    topics = []
    for name, partitions in offsets.topics.items():
        if not _may_describe(access, name):
            continue
        image = metadata.topics.get(name)
        if by_id and image is None:
            # A deleted topic has no id.
            continue
        topic_id = ZERO_TOPIC_ID if image is None else image.topic_id
        found = _partitions(offsets, name, partitions)
        topics.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=found))
    return topics


def _topic(
    metadata: MetadataImage,
    offsets: FetchedOffsets,
    topic: OffsetFetchRequestTopics,
    by_id: bool,
    access: Access | None,
) -> OffsetFetchResponseTopics:
    name, topic_id = topic.name, ZERO_TOPIC_ID
    if by_id:
        topic_id = topic.topic_id
        image = metadata.topics_by_id.get(topic_id)
        if image is None:
            return _topic_with_error(topic, ErrorCode.UNKNOWN_TOPIC_ID)
        name = image.name
    if not _may_describe(access, name):
        return _topic_with_error(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    partitions = _partitions(offsets, name, topic.partition_indexes, topic_id)
    return OffsetFetchResponseTopics(name=topic.name, topic_id=topic_id, partitions=partitions)


def _topic_with_error(topic: OffsetFetchRequestTopics, error: int) -> OffsetFetchResponseTopics:
    partitions = [_partition(index, NOT_COMMITTED, error) for index in paced(topic.partition_indexes)]
    return OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)


def _partitions(
    offsets: FetchedOffsets, topic: str, indexes: Iterable[int], topic_id: bytes = ZERO_TOPIC_ID
) -> list[OffsetFetchResponsePartitions]:
    """Return the offsets of partitions. With `topic_id`, those of an earlier topic of the same name do not count."""
    committed, unstable = offsets.topics.get(topic, NOTHING), offsets.unstable
    partitions = []
    for index in paced(indexes):
        offset, error = committed.get(index, NOT_COMMITTED), NO_ERROR
        if topic_id != ZERO_TOPIC_ID and offset.topic_id not in (ZERO_TOPIC_ID, topic_id):
            offset = NOT_COMMITTED
        if unstable and (topic, index) in unstable:
            offset, error = NOT_COMMITTED, ErrorCode.UNSTABLE_OFFSET_COMMIT
        partitions.append(_partition(index, offset, error))
    return partitions


def _partition(index: int, offset: OffsetAndMetadata, error: int) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        error_code=error,
    )


def _old_topic(topic: OffsetFetchResponseTopics) -> OffsetFetchResponseTopic:
    """Return a topic of the response in the form of versions below 8."""
    partitions = [
        OffsetFetchResponsePartition(
            partition_index=partition.partition_index,
            committed_offset=partition.committed_offset,
            committed_leader_epoch=partition.committed_leader_epoch,
            metadata=partition.metadata,
            error_code=partition.error_code,
        )
        for partition in paced(topic.partitions)
    ]
    return OffsetFetchResponseTopic(name=topic.name, partitions=partitions)
