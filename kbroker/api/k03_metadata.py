"""Metadata (key 3), versions 0 to 13.

- Topics: null means all and an empty list none, but in version 0 an empty list means all.
- A name that is absent is created with the broker's defaults if the request and auto.create.topics.enable
allow it.
  Kafka answers UNKNOWN_TOPIC_OR_PARTITION meanwhile and the client asks again; here the creation is awaited
  and the new topic is answered at once. A creation that is refused gets the answer that Kafka gives for it.
- Versions 12 and later look topics up by id; names beside ids are then not looked at, as in Kafka.
- Racks, offline replicas and leaders follow from which brokers are registered.
"""

from collections.abc import Awaitable, Iterable
from contextlib import suppress

from kbroker.api.authorized_operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from kbroker.api.context import RequestContext, Services
from kbroker.common import NO_LEADER, KafkaError
from kbroker.metadata.image import MetadataImage, PartitionRegistration, TopicImage
from kbroker.metadata.topics.internal_topics import INTERNAL_TOPICS
from kbroker.metadata.topics.topic_names import ZERO_UUID, topic_name_error
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

# From here on a topic may be asked for by its id.
FIRST_BY_ID = 12


def handle(
    services: Services, context: RequestContext, request: MetadataRequest
) -> MetadataResponse | Awaitable[MetadataResponse]:
    wanted = request.topics
    teller = Teller(services.metadata, context.version, request)
    if wanted is None or (context.version == 0 and not wanted):
        return teller.answer(map(teller.found, services.metadata.topics.values()))
    fault = _request_fault(wanted, context.version)
    if fault is not None:
        return _refuse_all(wanted, fault)
    ids = [topic.topic_id for topic in wanted if topic.topic_id != ZERO_UUID]
    if ids:
        return teller.answer(map(teller.by_id, dict.fromkeys(ids)))
    names = [name for name in dict.fromkeys(topic.name for topic in wanted) if name is not None]
    absent = [name for name in names if name not in services.metadata.topics and topic_name_error(name) is None]
    if absent and request.allow_auto_topic_creation and services.config.auto_create_topics_enable:
        return _create_and_answer(services, teller, absent, names)
    return teller.answer(map(teller.by_name, names))


async def _create_and_answer(
    services: Services, teller: "Teller", absent: list[str], names: list[str]
) -> MetadataResponse:
    for name in absent:
        # What is refused stays unknown, which clients retry: so does Kafka, whose brokers only log the
        # refusal.
        with suppress(KafkaError):
            await services.controller.auto_create_topic(name)
    return teller.answer(map(teller.by_name, names))


def _request_fault(wanted: Iterable[MetadataRequestTopic], version: int) -> ErrorCode | None:
    for topic in wanted:
        if topic.name is None and (version < FIRST_BY_ID or topic.topic_id == ZERO_UUID):
            return ErrorCode.INVALID_REQUEST
        if topic.topic_id != ZERO_UUID and version < FIRST_BY_ID:
            return ErrorCode.INVALID_REQUEST
    return None


def _refuse_all(wanted: Iterable[MetadataRequestTopic], code: ErrorCode) -> MetadataResponse:
    topics = [
        MetadataResponseTopic(error_code=code, name=topic.name or "", topic_id=topic.topic_id) for topic in wanted
    ]
    return MetadataResponse(topics=topics, error_code=code)


class Teller:
    """Tells what the image holds, in the terms of one request."""

    __slots__ = ("image", "request", "version")

    def __init__(self, image: MetadataImage, version: int, request: MetadataRequest) -> None:
        self.image = image
        self.version = version
        self.request = request

    def answer(self, topics: Iterable[MetadataResponseTopic]) -> MetadataResponse:
        image = self.image
        asked = self.request.include_cluster_authorized_operations
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node.id, host=node.host, port=node.port, rack=node.rack)
                for node in image.brokers.values()
            ],
            cluster_id=image.cluster_id,
            controller_id=image.controller_id,
            topics=list(topics),
            cluster_authorized_operations=CLUSTER_OPERATIONS if asked else NOT_ASKED,
        )

    def by_name(self, name: str) -> MetadataResponseTopic:
        topic = self.image.topics.get(name)
        if topic is not None:
            return self.found(topic)
        legal = topic_name_error(name) is None
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if legal else ErrorCode.INVALID_TOPIC_EXCEPTION
        return MetadataResponseTopic(error_code=code, name=name, is_internal=name in INTERNAL_TOPICS)

    def by_id(self, topic_id: bytes) -> MetadataResponseTopic:
        topic = self.image.topics_by_id.get(topic_id)
        if topic is not None:
            return self.found(topic)
        return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)

    def found(self, topic: TopicImage) -> MetadataResponseTopic:
        asked = self.request.include_topic_authorized_operations
        tell = self._partition if self.version else self._partition_v0
        return MetadataResponseTopic(
            error_code=ErrorCode.NONE,
            name=topic.name,
            topic_id=topic.topic_id,
            is_internal=topic.internal,
            partitions=[tell(index, state) for index, state in enumerate(topic.partitions)],
            topic_authorized_operations=TOPIC_OPERATIONS if asked else NOT_ASKED,
        )

    def _partition(self, index: int, state: PartitionRegistration) -> MetadataResponsePartition:
        led = state.leader in self.image.brokers
        return MetadataResponsePartition(
            error_code=ErrorCode.NONE if led else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=state.leader if led else NO_LEADER,
            leader_epoch=state.leader_epoch,
            replica_nodes=state.replicas,
            isr_nodes=state.isr,
            offline_replicas=self.image.offline_replicas(state),
        )

    def _partition_v0(self, index: int, state: PartitionRegistration) -> MetadataResponsePartition:
        """Version 0 has no offline replicas: they are left out of the lists and make an error."""
        answer = self._partition(index, state)
        answer.replica_nodes = self.image.registered_brokers(state.replicas)
        answer.isr_nodes = self.image.registered_brokers(state.isr)
        if answer.error_code == ErrorCode.NONE and len(answer.replica_nodes) < len(state.replicas):
            answer.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
        return answer
