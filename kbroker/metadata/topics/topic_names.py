"""Valid topic names, and those of internal topics."""

import re

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

GROUP_METADATA_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
SHARE_GROUP_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset((GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_GROUP_STATE_TOPIC))
MAX_NAME_LENGTH = 249
# The id in requests that identify a topic by its name only.
ZERO_UUID = bytes(16)

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


def topic_name_error(name: str) -> str | None:
    """Return why a topic name is invalid, None if it is valid."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        # DescribeProducers repeats the error for each partition: 100,000 copies of a long name would take gigabytes.
        shown = name if len(name) <= 2 * MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}..."
        return f"the length of '{shown}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if not _LEGAL_NAME.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def validate_topic_name(name: str) -> None:
    """Raise KafkaError (INVALID_TOPIC_EXCEPTION) if a topic name is invalid."""
    error = topic_name_error(name)
    if error is not None:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {error}")


def collision_key(name: str) -> str:
    """Return a key that must be unique among topics: in Kafka's metric names '.' is replaced by '_'."""
    return name.replace(".", "_")
