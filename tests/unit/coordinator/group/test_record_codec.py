"""Records of __consumer_offsets are decoded and encoded as Apache Kafka 4.3.1 wrote them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbroker.coordinator.group.classic.classic_group_member import member_from_record
from kbroker.coordinator.group.classic.records import ClassicGroupRecord
from kbroker.coordinator.group.kinds import RECORD_CODEC
from kbroker.coordinator.group.records import (
    ZERO_TOPIC_ID,
    OffsetAndMetadata,
    OffsetKey,
    OffsetRecord,
)
from protocol.errors import MalformedError
from protocol.messages.group_records import (
    GroupMetadataMember,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records
from protocol.schema.codec import encode

LOGS = sorted((Path(__file__).parents[1] / "data").glob("kafka-*.log"))
TOPIC_ID = bytes.fromhex("31a48bfe838f4b6e98b16ea02aefc0b8")
MEMBER_ID = b"b-984c6b8c-6a25-4244-a709-c7885c2df7c7"

# Records of __consumer_offsets as Kafka 4.3.1 wrote them: key and value.
WRITTEN: dict[str, tuple[ClassicGroupRecord | OffsetRecord, bytes, bytes | None]] = {
    "offset": (
        OffsetRecord(
            OffsetKey("s", "t", 0), OffsetAndMetadata(5, -1, "meta", commit_ms=1795255032775, topic_id=TOPIC_ID)
        ),
        b"\0\1\0\1s\0\1t\0\0\0\0",
        b"\0\4\0\0\0\0\0\0\0\5\xff\xff\xff\xff\5meta\0\0\1\xa1\xfd\x89\xdb\xc7\1\0\x10" + TOPIC_ID,
    ),
    "offset without topic id": (
        OffsetRecord(OffsetKey("txg", "t", 0), OffsetAndMetadata(1, commit_ms=1795256817965)),
        b"\0\1\0\3txg\0\1t\0\0\0\0",
        b"\0\4\0\0\0\0\0\0\0\1\xff\xff\xff\xff\1\0\0\1\xa1\xfd\xa5\x19-\0",
    ),
    "offset with its own retention": (
        OffsetRecord(
            OffsetKey("gone", "t", 0), OffsetAndMetadata(1, commit_ms=1795255033119, expire_ms=1795255034119)
        ),
        b"\0\1\0\4gone\0\1t\0\0\0\0",
        b"\0\1\0\0\0\0\0\0\0\1\0\0\0\0\1\xa1\xfd\x89\xdd\x1f\0\0\1\xa1\xfd\x89\xe1\7",
    ),
    "group": (
        ClassicGroupRecord(
            "s",
            GroupMetadataValue(
                protocol_type="consumer",
                generation=1,
                protocol="range",
                leader=MEMBER_ID.decode(),
                current_state_timestamp=1795255033450,
                members=[
                    GroupMetadataMember(
                        member_id=MEMBER_ID.decode(),
                        client_id="b",
                        client_host="/127.0.0.1",
                        rebalance_timeout=2000,
                        session_timeout=5000,
                        subscription=b"rb",
                        assignment=b"B",
                    )
                ],
            ),
        ),
        b"\0\2\0\1s",
        b"\0\3\0\x08consumer\0\0\0\1\0\5range\0&" + MEMBER_ID + b"\0\0\1\xa1\xfd\x89\xdej\0\0\0\1\0&" + MEMBER_ID
        + b"\xff\xff\0\1b\0\n/127.0.0.1\0\0\7\xd0\0\0\x13\x88\0\0\0\2rb\0\0\0\1B",
    ),
    "no group": (ClassicGroupRecord("d", None), b"\0\2\0\1d", None),
    "no offset": (OffsetRecord(OffsetKey("s", "t", 1), None), b"\0\1\0\1s\0\1t\0\0\0\1", None),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_records_are_encoded_and_decoded_as_by_apache_kafka(name: str) -> None:
    record, key, value = WRITTEN[name]
    assert RECORD_CODEC.encode(record) == (key, value)
    assert RECORD_CODEC.decode(key, value) == record


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_a_log_of_apache_kafka_is_decoded(path: Path) -> None:
    types = set()
    data = path.read_bytes()
    for pos, header in iter_headers(data):
        if header.is_control:
            continue
        for raw in iter_records(body_of(data, pos, header.size), header.count, header.base_timestamp):
            record = RECORD_CODEC.decode(raw.key, raw.value)
            types.add(type(record).__name__)
            if record is not None:
                assert RECORD_CODEC.encode(record) == (raw.key, raw.value)
    assert types


INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)


@given(
    st.builds(OffsetKey, st.text(), st.text(), INT32),
    st.builds(
        OffsetAndMetadata,
        offset=INT64,
        leader_epoch=INT32,
        metadata=st.text() | st.integers(126, 5000).map("m".__mul__),
        commit_ms=INT64,
        expire_ms=st.just(-1) | INT64,
        topic_id=st.just(ZERO_TOPIC_ID) | st.binary(min_size=16, max_size=16),
    ),
)
def test_offsets_are_encoded_as_their_messages(key: OffsetKey, offset: OffsetAndMetadata) -> None:
    version = 4 if offset.expire_ms == -1 else 1
    message_key = OffsetCommitKey(group=key.group_id, topic=key.topic, partition=key.partition)
    message = OffsetCommitValue(
        offset=offset.offset,
        leader_epoch=offset.leader_epoch,
        metadata=offset.metadata,
        commit_timestamp=offset.commit_ms,
        expire_timestamp=offset.expire_ms,
        topic_id=offset.topic_id,
    )
    assert RECORD_CODEC.encode(OffsetRecord(key, offset)) == (
        b"\0\1" + encode(message_key, 1),
        version.to_bytes(2, "big") + encode(message, version),
    )


OLD_OFFSET = b"\0\0\0\0\0\0\0\7\0\1m\0\0\0\0\0\0\0\x09"


@pytest.mark.parametrize(
    ("value", "offset"),
    [
        (b"\0\0" + OLD_OFFSET, OffsetAndMetadata(7, -1, "m", commit_ms=9)),
        (b"\0\1" + OLD_OFFSET + bytes(7) + b"\x0a", OffsetAndMetadata(7, -1, "m", commit_ms=9, expire_ms=10)),
        (b"\0\2" + OLD_OFFSET, OffsetAndMetadata(7, -1, "m", commit_ms=9)),
        (b"\0\3" + OLD_OFFSET[:8] + b"\0\0\0\3" + OLD_OFFSET[8:], OffsetAndMetadata(7, 3, "m", commit_ms=9)),
    ],
)
def test_older_versions_of_offset_values_are_decoded(value: bytes, offset: OffsetAndMetadata) -> None:
    key = b"\0\0\0\1g\0\1t\0\0\0\2"
    assert RECORD_CODEC.decode(key, value) == OffsetRecord(OffsetKey("g", "t", 2), offset)


def test_the_session_timeout_of_version_0_is_the_rebalance_timeout_too() -> None:
    value = b"\0\0\0\1c\0\0\0\1\xff\xff\xff\xff\0\0\0\1" + b"\0\1m\0\0\0\0" + b"\0\0\0\x64" + b"\0\0\0\0\0\0\0\0"
    record = RECORD_CODEC.decode(b"\0\2\0\1g", value)
    assert isinstance(record, ClassicGroupRecord)
    assert record.value is not None
    member = member_from_record(record.value.members[0], "range")
    assert (member.rebalance_timeout_ms, member.session_timeout_ms) == (100, 100)
    assert record.value.current_state_timestamp == -1


def test_records_of_newer_group_types_are_ignored() -> None:
    assert RECORD_CODEC.decode(b"\0\4\0\4newg", b"\0\0\0\0\0\1") is None
    assert RECORD_CODEC.decode(b"\0\x7fwhatever", None) is None
    assert RECORD_CODEC.decode(None, b"x") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"", b""), (b"\0\1\0\x09g", None), (b"\0\2\0\1g", b"\0\x09"), (b"\0\2\0\1g", b"\0"), (b"\0\2\0\1g", b"\0\3\0")],
)
def test_malformed_records_are_rejected(key: bytes, value: bytes | None) -> None:
    with pytest.raises(MalformedError):
        RECORD_CODEC.decode(key, value)
