"""Metadata (key 3), versions 0 to 13: the brokers, the controller, and topics with their partitions.

- Topics: null means all. An empty list means none, but in version 0 it means all.
- A topic that does not exist is created with the broker's defaults if the request (version 4) and
  auto.create.topics.enable allow it. As in Kafka, the error is UNKNOWN_TOPIC_OR_PARTITION, and the client asks again. A
  lone broker waits for the creation and returns the new topic, which it serves at once; other brokers may not yet.
  If the topic was deleted in the last seconds, the client may be looking whether it is gone (kafka-go does, with the
  permission to create it): then a lone broker responds as Kafka.
- Versions 12 and later find topics by id. A request with ids ignores its names, as in Kafka.
- Retired partitions (queues/closing/closing_partitions.py) are returned only to producers that know them.
- The addresses are those of the request's listener. A broker that does not have it is left out, its replicas are
  offline, and its partitions have the error LISTENER_NOT_FOUND, before version 6 LEADER_NOT_AVAILABLE.
- Racks, offline replicas and available leaders are derived from the registered brokers.
- Topics without DESCRIBE have the error TOPIC_AUTHORIZATION_FAILED whether they exist or not, and are left out of all
  topics. Creating one needs CREATE on it, or on the cluster.
- While no controller is known, another broker is named as the controller, as in Kafka: every broker forwards requests
  to the controller, and an admin client of librdkafka that has read -1 waits until its request times out.
"""

from collections.abc import Awaitable, Collection, Iterable, Mapping
from contextlib import suppress

from kbroker.api.context import RequestContext, Services
from kbroker.authorization.acl import CLUSTER_NAME, OPERATIONS_NOT_REQUESTED, Operation, ResourceType
from kbroker.common import NO_LEADER, KafkaError
from kbroker.metadata.image import BrokerEndpoint, MetadataImage, PartitionRegistration, TopicImage
from kbroker.metadata.topics.topic_names import INTERNAL_TOPICS, ZERO_UUID, topic_name_error
from kbroker.queues.closing.retired_partitions import knows_retired
from kbroker.runtime.turns import paced, yield_if_due
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

# The metadata of 200 partitions takes one or two milliseconds.
RUNS_IN_TURNS = True

FIRST_WITH_TOPIC_IDS = 12
FIRST_WITH_LISTENER_NOT_FOUND = 6
PARTITIONS_AT_ONCE = 64

Endpoints = Mapping[int, BrokerEndpoint]


def handle(
    services: Services, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    builder = ResponseBuilder(services, context, request)
    if request.topics is None or (context.version == 0 and not request.topics):
        topics = list(services.metadata.topics.values())
        described = (topic for topic in paced(topics) if builder.may_describe(topic.name))
        return builder.response([builder.existing_topic(topic) for topic in described])
    return _requested_topics(services, context, builder, request.topics)


def is_cacheable(services: Services, request: MetadataRequest) -> bool:
    """Return whether every connection gets the same response: some producers also get retired partitions."""
    retired = services.metadata.retired_versions
    if not retired:
        return True
    return bool(request.topics) and not any(
        topic.name in retired or topic.topic_id in retired for topic in request.topics or ()
    )


def _requested_topics(
    services: Services, context: RequestContext, builder: "ResponseBuilder", requested: list[MetadataRequestTopic]
) -> MetadataResponse | Awaitable[MetadataResponse]:
    # Without duplicates.
    ids: dict[bytes, None] = {}
    names: dict[str, None] = {}
    for topic in paced(requested):
        if not _is_valid(topic, context.version):
            topics = [
                MetadataResponseTopic(
                    error_code=ErrorCode.INVALID_REQUEST, name=invalid.name or "", topic_id=invalid.topic_id
                )
                for invalid in paced(requested)
            ]
            return MetadataResponse(topics=topics, error_code=ErrorCode.INVALID_REQUEST)
        if topic.topic_id != ZERO_UUID:
            ids[topic.topic_id] = None
        if topic.name is not None:
            names[topic.name] = None
    if ids:
        return builder.response([builder.topic_by_id(topic_id) for topic_id in paced(ids)])
    if builder.request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        metadata = services.metadata
        missing = [
            name
            for name in paced(names)
            if name not in metadata.topics and not topic_name_error(name) and builder.may_create(name)
        ]
        if missing:
            return _create_missing_topics(services, context, builder, missing, names)
    return builder.response([builder.topic_by_name(name) for name in paced(names)])


async def _create_missing_topics(
    services: Services,
    context: RequestContext,
    builder: "ResponseBuilder",
    missing: Collection[str],
    names: Iterable[str],
) -> MetadataResponse:
    for name in missing:
        # As in Kafka, the error is only logged. The topic stays unknown, so clients retry.
        with suppress(KafkaError):
            await services.auto_topic_creation.auto_create_topic(name, context.requester)
        yield_if_due()
    if len(services.metadata.brokers) > 1:
        builder.created = frozenset(missing)
    else:
        builder.created = {name for name in missing if services.auto_topic_creation.deleted_lately(name)}
    return builder.response([builder.topic_by_name(name) for name in paced(names)])


def _is_valid(topic: MetadataRequestTopic, version: int) -> bool:
    if version < FIRST_WITH_TOPIC_IDS:
        return topic.name is not None and topic.topic_id == ZERO_UUID
    return topic.name is not None or topic.topic_id != ZERO_UUID


def controller_id(image: MetadataImage, endpoints: Endpoints) -> int:
    """Return the id of the controller, or of another broker if the client cannot reach it or none is known."""
    return image.controller_id if image.controller_id in endpoints else next(iter(endpoints), NO_LEADER)


class ResponseBuilder:
    """Builds the response to one request from the image.

    `created`: new topics, to be returned as unknown. `uncreated`: those that the client may not create.
    """

    __slots__ = ("_services", "access", "context", "created", "image", "listener", "producer_since", "request",
                 "uncreated", "version")  # fmt: skip

    def __init__(self, services: Services, context: RequestContext, request: MetadataRequest) -> None:
        self.created: Collection[str] = ()
        self.uncreated: set[str] = set()
        self.image = services.metadata
        self.access = context.access(services)
        self.context = context
        self._services = services
        self.listener = context.listener
        self.producer_since = context.connection.producer_since
        self.version = context.version
        self.request = request

    def may_describe(self, name: str) -> bool:
        access = self.access
        return access is None or access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name)

    def may_create(self, name: str) -> bool:
        """Return whether the client may create a topic that it has named. If it may not, the topic is refused."""
        access = self.access
        if access is None:
            return True
        if (
            access.allows(Operation.DESCRIBE, ResourceType.TOPIC, name)
            and (access.allows(Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME)
                 or access.allows(Operation.CREATE, ResourceType.TOPIC, name))
        ):  # fmt: skip
            return True
        self.uncreated.add(name)
        return False

    def response(self, topics: list[MetadataResponseTopic]) -> MetadataResponse:
        image = self.image
        endpoints = image.endpoints(self.listener)
        operations = OPERATIONS_NOT_REQUESTED
        if self.request.include_cluster_authorized_operations:
            operations = self.context.authorized_operations(self._services, ResourceType.CLUSTER, CLUSTER_NAME)
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=id, host=at.host, port=at.port, rack=image.brokers[id].rack)
                for id, at in endpoints.items()
            ],
            cluster_id=image.cluster_id,
            controller_id=controller_id(image, endpoints),
            topics=topics,
            cluster_authorized_operations=operations,
        )

    def topic_by_name(self, name: str) -> MetadataResponseTopic:
        if name in self.uncreated or not self.may_describe(name):
            return MetadataResponseTopic(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, name=name)
        topic = self.image.topics.get(name)
        if topic is not None and name not in self.created:
            return self.existing_topic(topic)
        is_valid = topic_name_error(name) is None
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION
        return MetadataResponseTopic(
            error_code=code,
            name=name,
            is_internal=name in INTERNAL_TOPICS,
            topic_authorized_operations=self._topic_operations(name),
        )

    def topic_by_id(self, topic_id: bytes) -> MetadataResponseTopic:
        topic = self.image.topics_by_id.get(topic_id)
        code = ErrorCode.UNKNOWN_TOPIC_ID
        if topic is not None:
            if self.may_describe(topic.name):
                return self.existing_topic(topic)
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        return MetadataResponseTopic(error_code=code, name=None, topic_id=topic_id)

    def existing_topic(self, topic: TopicImage) -> MetadataResponseTopic:
        if topic.view_of or not knows_retired(self.image, self.producer_since, topic):
            topic = self.image.resolve(topic)
        build_partition = self._partition if self.version else self._partition_v0
        partitions: list[MetadataResponsePartition] = []
        for first in range(0, len(topic.partitions), PARTITIONS_AT_ONCE):
            some = topic.partitions[first : first + PARTITIONS_AT_ONCE]
            endpoints = self.image.endpoints(self.listener)
            partitions += [build_partition(index, partition, endpoints) for index, partition in enumerate(some, first)]
            yield_if_due()
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.internal,
            partitions=partitions,
            topic_authorized_operations=self._topic_operations(topic.name),
        )

    def _topic_operations(self, name: str) -> int:
        if not self.request.include_topic_authorized_operations:
            return OPERATIONS_NOT_REQUESTED
        return self.context.authorized_operations(self._services, ResourceType.TOPIC, name)

    def _partition(
        self, index: int, partition: PartitionRegistration, endpoints: Endpoints
    ) -> MetadataResponsePartition:
        has_leader = partition.leader in endpoints
        return MetadataResponsePartition(
            error_code=ErrorCode.NONE if has_leader else self._leader_error(partition.leader),
            partition_index=index,
            leader_id=partition.leader if has_leader else NO_LEADER,
            leader_epoch=partition.leader_epoch,
            replica_nodes=partition.replicas,
            isr_nodes=partition.isr,
            offline_replicas=[replica for replica in partition.replicas if replica not in endpoints],
        )

    def _leader_error(self, leader: int) -> ErrorCode:
        """Return the error of a partition whose leader the client cannot reach."""
        if self.version >= FIRST_WITH_LISTENER_NOT_FOUND and leader in self.image.brokers:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE

    def _partition_v0(
        self, index: int, partition: PartitionRegistration, endpoints: Endpoints
    ) -> MetadataResponsePartition:
        """Return a partition in version 0, which has no field for offline replicas: they are omitted, with an error."""
        result = self._partition(index, partition, endpoints)
        result.replica_nodes = [replica for replica in partition.replicas if replica in endpoints]
        result.isr_nodes = [replica for replica in partition.isr if replica in endpoints]
        if result.error_code == ErrorCode.NONE and len(result.replica_nodes) < len(partition.replicas):
            result.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
        return result
