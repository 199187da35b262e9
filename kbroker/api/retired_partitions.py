"""Decides whose Metadata responses include the retired partitions of a topic: only producers that already use them.

See metadata/topics/closing_partitions.py for retired partitions. A producer is recognized by its connection: it
has produced on it before the partitions retired, or it sends records to them. A producer that starts later must not
learn of them: it would use them after its first refresh of metadata, and they would never be idle.

After a restart of the broker, running producers reconnect. A connection that produces soon after it was opened counts
as one from before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kbroker.api.context import RequestConnection, Services
    from kbroker.metadata.image import MetadataImage, TopicImage
    from protocol.fast.produce import TopicRecords

RECONNECT_MS = 60_000
# Lower than every version of the metadata image.
ALWAYS = 0


def note_producer(services: Services, connection: RequestConnection, topics: Sequence[TopicRecords]) -> None:
    """Record the image version at which a connection has begun to produce; ALWAYS if it uses retired partitions."""
    image = services.metadata
    if connection.producer_since is None:
        is_reconnected = services.environment.clock.now_ms() < services.started_ms + RECONNECT_MS
        connection.producer_since = ALWAYS if is_reconnected else image.version
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
