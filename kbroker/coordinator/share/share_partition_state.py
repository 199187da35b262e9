"""The state of a share partition as the share coordinator keeps it, and the requests of its leader (pure)."""

import re
from enum import IntEnum
from typing import NamedTuple

from kbroker.common import uuid_text

# The start offset of a partition that no leader has initialized yet, and of a write that does not change it.
UNINITIALIZED_START_OFFSET = -1
UNINITIALIZED_EPOCH = 0
# A write below version 1 has no delivery complete count.
UNKNOWN_COUNT = -1
NOT_DELAYED = -1
_COORDINATOR_KEY = re.compile(r"(.*):[A-Za-z0-9_-]{22}(?:==)?:([+-]?[0-9]{1,10})", re.DOTALL)


class SharePartitionKey(NamedTuple):
    """A share partition: a partition of a topic, as one share group consumes it."""

    group_id: str
    topic_id: bytes
    partition: int

    def __str__(self) -> str:
        """The key in FindCoordinator requests, whose hash determines the partition of __share_group_state."""
        return f"{self.group_id}:{uuid_text(self.topic_id)}:{self.partition}"


def is_coordinator_key(text: str) -> bool:
    """Return whether a FindCoordinator request may have this key: GROUP:TOPIC-ID:PARTITION, as Kafka parses it."""
    # Java's split drops empty parts at the end.
    match = _COORDINATOR_KEY.fullmatch(text.rstrip(":"))
    return match is not None and bool(match[1].strip()) and -(1 << 31) <= int(match[2]) < 1 << 31


class DeliveryState(IntEnum):
    """ACQUIRED is never persisted: a lock ends with its leader. ARCHIVING: its dead letter is being written (KIP-1191).

    ARCHIVED records will not be delivered any more.
    """

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class StateBatch(NamedTuple):
    """The state of the offsets `first` to `last`. `due_ms`: see protocol/messages/k83_share_state.py."""

    first: int
    last: int
    state: int
    delivery_count: int
    due_ms: int = NOT_DELAYED


class StateWrite(NamedTuple):
    """What a leader writes: the ranges that have changed.

    `start_offset` is UNINITIALIZED_START_OFFSET if it has not changed. `delivery_complete_count`: how many records from
    the start offset on are acknowledged or archived, for the lag of the group (KIP-1226).
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    batches: tuple[StateBatch, ...]


class PersistedState(NamedTuple):
    """What a new leader reads."""

    state_epoch: int
    start_offset: int
    batches: tuple[StateBatch, ...]


class StateSummary(NamedTuple):
    """What describes the progress of a group. Of a partition without state, all fields have their defaults."""

    state_epoch: int = UNINITIALIZED_EPOCH
    leader_epoch: int = UNINITIALIZED_EPOCH
    start_offset: int = UNINITIALIZED_START_OFFSET
    delivery_complete_count: int = UNKNOWN_COUNT
