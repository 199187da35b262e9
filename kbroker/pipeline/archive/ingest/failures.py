"""Which failures of a streaming query pass when the broker is back, so that the query may be started again."""

import re
from collections.abc import Iterator

from kbroker.pipeline.kafka import BrokerGone

_PASSING = re.compile(
    r"org\.apache\.kafka\.common\.errors\.\w+"
    r"|org\.apache\.kafka\.common\.KafkaException"
    r"|Cannot fetch record for offset|Tried to fetch \d+ but the returned record offset"
    r"|Timed out waiting for a node assignment|Failed to update metadata|No resolvable bootstrap urls"
    # A partition was made between our look and Spark's.
    r"|you must specify all TopicPartitions"
)
_LASTING = re.compile(
    r"errors\.(?:\w*Auth\w+|UnsupportedVersion|InvalidTopic|InvalidConfiguration|Serialization|RecordDeserialization"
    r"|CorruptRecord|Config)Exception|No space left on device|OutOfMemoryError|Disk quota exceeded"
)


def passes(error: BaseException) -> bool:
    """Whether it comes of brokers that were away or changing."""
    said = list(_texts(error))
    if any(_LASTING.search(text) for text in said):
        return False
    return isinstance(error, BrokerGone) or any(_PASSING.search(text) for text in said)


def _texts(error: BaseException | None) -> Iterator[str]:
    """All that was said, Java's stack traces included."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        try:
            yield str(error)
        except Exception:  # Java's text is asked of a JVM that may be gone
            yield type(error).__name__
        yield str(getattr(error, "_stackTrace", "") or "")
        error = error.__cause__ or error.__context__
