"""The records of classic groups, with the bytes that Apache Kafka 4.4 writes and reads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.coordinator.group.group import Now
from kbroker.coordinator.group.records import EncodedRecord, RecordCodec, decode_key, decode_value, encode_with_version
from kbroker.coordinator.runtime.operation import ignore
from kbroker.runtime.turns import yield_if_due
from protocol.errors import ErrorCode
from protocol.messages.group_records import GroupMetadataKey, GroupMetadataValue

GROUP_METADATA_KEY_VERSION = 2
GROUP_METADATA_VALUE_VERSION = 3


class ClassicGroupRecord(NamedTuple):
    """A generation with its assignment, or an empty group. `value` is None in a tombstone: the group is deleted.

    The protocol type is "" for a group that never had a member. A member's subscription is its metadata for the
    selected protocol. The timestamp is wall clock; -1 in records of old brokers.
    """

    group_id: str
    value: GroupMetadataValue | None


@dataclass(slots=True, frozen=True)
class PendingRecord:
    """A record that has to be committed before an operation on a group continues. The group is locked until then.

    `on_committed` is called after the replay of the record.
    """

    record: ClassicGroupRecord
    on_committed: Callable[[Now], None] = ignore
    on_failed: Callable[[ErrorCode, Now], None] = ignore


def _encode_record(record: ClassicGroupRecord) -> EncodedRecord:
    key = encode_with_version(GroupMetadataKey(group=record.group_id), GROUP_METADATA_KEY_VERSION)
    value = record.value
    return key, None if value is None else encode_with_version(value, GROUP_METADATA_VALUE_VERSION, yield_if_due)


def _decode_record(version: int, key: bytes, value: bytes | None) -> ClassicGroupRecord:
    group_id = decode_key(GroupMetadataKey, version, key).group
    return ClassicGroupRecord(group_id, None if value is None else decode_value(GroupMetadataValue, value))


CODEC = RecordCodec((GROUP_METADATA_KEY_VERSION,), (ClassicGroupRecord,), _encode_record, _decode_record)
