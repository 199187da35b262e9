"""The records of a kind of group, and their codec, from the declarations of their keys and values."""

from typing import Any, Generic, NamedTuple, TypeVar

from kbroker.coordinator.group.records import EncodedRecord, RecordCodec, decode_key, decode_value, encode_with_version
from protocol.schema.message import Message, message_info

VALUE_VERSION = 0

V = TypeVar("V", bound=Message)


class GroupRecord(NamedTuple, Generic[V]):
    """A record of a group. `value` is None in a tombstone."""

    group_id: str
    value: V | None


class MemberRecord(NamedTuple, Generic[V]):
    """A record of a member. `value` is None in a tombstone."""

    group_id: str
    member_id: str
    value: V | None


class RecordType(NamedTuple):
    """The fields of `record` are those of the key, and `value`."""

    record: type[Any]
    key: type[Message]
    value: type[Message]


def codec_of(*types: RecordType) -> RecordCodec:
    """Return the codec of records whose values have one version. The version of a key is the type of its record."""
    by_record = {each.record: (message_info(each.key).min_version, each) for each in types}
    by_version = dict(by_record.values())

    def encode(record: Any) -> EncodedRecord:
        version, (_, key_class, _) = by_record[type(record)]
        *fields, value = record
        key = key_class(**dict(zip(key_class.__rows__, fields, strict=True)))
        return encode_with_version(key, version), None if value is None else encode_with_version(value, VALUE_VERSION)

    def decode(version: int, key: bytes, value: bytes | None) -> object:
        record_class, key_class, value_class = by_version[version]
        decoded = decode_key(key_class, version, key)
        fields = [getattr(decoded, name) for name in key_class.__rows__]
        return record_class(*fields, None if value is None else decode_value(value_class, value))

    return RecordCodec(tuple(by_version), tuple(by_record), encode, decode)
