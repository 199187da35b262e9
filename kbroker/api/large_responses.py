"""Decides which small requests are expensive, for `is_large` of the handlers (context.py)."""

from collections.abc import Iterable

from kbroker.metadata.image import MetadataImage

# The metadata of this many partitions takes one or two milliseconds.
MAX_PARTITIONS_AT_ONCE = 200
# Topics that are created, or resources whose configs are altered: each takes about 0.3 ms.
MAX_ALTERED_AT_ONCE = 10
# Groups or transactions that are listed at once.
MAX_LISTED_AT_ONCE = 500


def has_many_partitions(metadata: MetadataImage, names: Iterable[str] | None) -> bool:
    """Return whether topics, all if `names` is None, have more than MAX_PARTITIONS_AT_ONCE partitions."""
    topics = metadata.topics
    found = topics.values() if names is None else (topics[name] for name in names if name in topics)
    count = 0
    for topic in found:
        count += 1 + len(metadata.resolve(topic).partitions)
        if count > MAX_PARTITIONS_AT_ONCE:
            return True
    return False
