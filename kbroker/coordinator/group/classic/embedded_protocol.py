"""The subscriptions and assignments of consumers that the coordinator reads and writes in mixed groups (KIP-848).

Otherwise these bytes belong to the clients: JoinGroup has subscriptions, SyncGroup assignments.
"""

from collections.abc import Iterable, Mapping

from kbroker.coordinator.group.records import encode_with_version
from protocol.errors import MalformedError
from protocol.messages.consumer_protocol import AssignedTopic, ConsumerProtocolAssignment, ConsumerProtocolSubscription
from protocol.schema.codec import decode

MAX_VERSION = 3
_VERSION_BYTES = 2


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Return a subscription. Raises MalformedError."""
    return decode(ConsumerProtocolSubscription, data, version_of(data), _VERSION_BYTES)


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Return an assignment; no bytes are an empty one. Raises MalformedError."""
    if not data:
        return ConsumerProtocolAssignment()
    return decode(ConsumerProtocolAssignment, data, version_of(data), _VERSION_BYTES)


def encode_assignment(subscription: bytes, partitions: Mapping[str, Iterable[int]]) -> bytes:
    """Return an assignment of partitions by topic, in the version of a member's subscription."""
    topics = [AssignedTopic(topic=topic, partitions=list(indexes)) for topic, indexes in partitions.items()]
    return encode_with_version(ConsumerProtocolAssignment(assigned_partitions=topics), version_of(subscription))


def version_of(data: bytes) -> int:
    """Return the version of a subscription or assignment; a higher one begins like the highest that is known."""
    if len(data) < _VERSION_BYTES:
        raise MalformedError(f"a subscription or assignment of {len(data)} bytes")
    version = int.from_bytes(data[:_VERSION_BYTES], signed=True)
    if version < 0:
        raise MalformedError(f"version {version} of the consumer protocol")
    return min(version, MAX_VERSION)
