"""Recognizes failures of a streaming query after which it can be restarted, because brokers were unavailable."""

import re
from collections.abc import Iterator

from kbroker.pipeline.cluster_admin import BrokerUnavailableError

_TRANSIENT = re.compile(
    r"org\.apache\.kafka\.common\.errors\.\w+"
    r"|org\.apache\.kafka\.common\.KafkaException"
    r"|Cannot fetch record for offset|Tried to fetch \d+ but the returned record offset"
    r"|Timed out waiting for a node assignment|Failed to update metadata|No resolvable bootstrap urls"
    # A partition was created after the start offsets were chosen.
    r"|you must specify all TopicPartitions"
)
_PERMANENT = re.compile(
    r"errors\.(?:\w*Auth\w+|UnsupportedVersion|InvalidTopic|InvalidConfiguration|Serialization|RecordDeserialization"
    r"|CorruptRecord|Config)Exception|No space left on device|OutOfMemoryError|Disk quota exceeded"
)


def is_transient(error: BaseException) -> bool:
    """Return whether the error, or one of its causes, shows that brokers were unavailable or changing."""
    texts = list(_texts(error))
    if any(_PERMANENT.search(text) for text in texts):
        return False
    return isinstance(error, BrokerUnavailableError) or any(_TRANSIENT.search(text) for text in texts)


def _texts(error: BaseException | None) -> Iterator[str]:
    """Yield the messages and Java stack traces of an error and its causes."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        try:
            yield str(error)
        except Exception:  # py4j requests the text from the JVM, which may have ended
            yield type(error).__name__
        yield str(getattr(error, "_stackTrace", "") or "")
        error = error.__cause__ or error.__context__
