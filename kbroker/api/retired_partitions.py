"""Which producers know the retired partitions of a topic (metadata/topics/close_partitions.py): Metadata has them.

Those are known by their connections. One on which records were produced before the partitions retired is that of such
a producer, and so is one on which records are sent to them. A producer that has started later must not learn of them:
it would use them after its first refresh of metadata, and they would never be idle.

When the broker was restarted, running producers reconnect. A connection on which they soon produce counts as old.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.api.context import RequestConnection, Services
    from kbroker.metadata.image import MetadataImage, TopicImage
    from protocol.fast.produce import TopicRecords

RECONNECT_MS = 60_000
# Older than each version of the metadata image.
ALWAYS = 0


def note_producer(services: Services, connection: RequestConnection, topics: Sequence[TopicRecords]) -> None:
    """Note with which version of the metadata image a connection has begun to produce."""
    image = services.metadata
    if connection.producer_since is None:
        is_reconnected = services.environment.clock.now_ms() < services.started_ms + RECONNECT_MS
        connection.producer_since = ALWAYS if is_reconnected else image.version
    if connection.producer_since != ALWAYS and any(
        key in image.with_retired and _has_retired(image, key, [row[0] for row in rows]) for key, rows in topics
    ):
        connection.producer_since = ALWAYS


def _has_retired(image: MetadataImage, key: str | bytes, indexes: Sequence[int]) -> bool:
    topic = image.topics_by_id[key] if isinstance(key, bytes) else image.topics[key]
    return max(indexes, default=-1) >= topic.listed_partitions


def knows_retired(image: MetadataImage, producer_since: int | None, topic: TopicImage) -> bool:
    """Return whether a connection is that of a producer which knows the retired partitions of a topic."""
    return producer_since is not None and producer_since < image.with_retired.get(topic.name, ALWAYS)
