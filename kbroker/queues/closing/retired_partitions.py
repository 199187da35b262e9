"""Decides whose Metadata responses include the retired partitions of a topic: only producers that already use them.

See closing_partitions.py for retired partitions. A producer is recognized by its connection: it
has produced on it before the partitions retired, or it sends records to them. A producer that starts later must not
learn of them: it would use them after its first refresh of metadata, and they would never be idle.

After a restart of the broker, running producers reconnect. A connection that produces soon after it was opened counts
as one from before.
"""

from collections.abc import Sequence
from typing import Protocol

from kbroker.metadata.image import MetadataImage, TopicImage
from protocol.fast.produce import TopicRecords

RECONNECT_MS = 60_000
# Lower than every version of the metadata image.
ALWAYS = 0


class ProducerConnection(Protocol):
    """`producer_since`: the image version at which it has begun to produce, None if it has not."""

    producer_since: int | None


def note_producer(
    image: MetadataImage, connection: ProducerConnection, topics: Sequence[TopicRecords], uptime_ms: int
) -> None:
    """Set `producer_since` of a connection; ALWAYS if it uses retired partitions. `uptime_ms`: of this broker."""
    if connection.producer_since is None:
        connection.producer_since = ALWAYS if uptime_ms < RECONNECT_MS else image.version
    if connection.producer_since != ALWAYS and any(
        key in image.retired_versions and _has_retired(image, key, [row[0] for row in rows]) for key, rows in topics
    ):
        connection.producer_since = ALWAYS


def _has_retired(image: MetadataImage, key: str | bytes, indexes: Sequence[int]) -> bool:
    topic = image.topics_by_id[key] if isinstance(key, bytes) else image.topics[key]
    return max(indexes, default=-1) >= topic.listed_partitions


def knows_retired(image: MetadataImage, producer_since: int | None, topic: TopicImage) -> bool:
    """Return whether a connection belongs to a producer that knows the retired partitions of a topic."""
    return producer_since is not None and producer_since < image.retired_versions.get(topic.name, ALWAYS)
