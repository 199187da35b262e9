"""Records of __transaction_state are decoded and encoded as Apache Kafka 4.3.1 wrote them."""

from pathlib import Path

import pytest

from kbroker.common import TopicPartition
from kbroker.coordinator.transaction.transaction_metadata import (
    TransactionMetadata,
    TransactionRecord,
    TransactionState,
    TransactionTombstone,
    decode_record,
    encode_record,
)
from protocol.errors import MalformedError
from protocol.records.batch import body_of, iter_headers
from protocol.records.record import iter_records

LOG = Path(__file__).parents[1] / "data" / "transactions-4.3.1.log"
KEY = b"\0\0\0\1t"
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)
NEXT, PREVIOUS = b"\1\x08\0\0\0\0\0\0\0=", b"\0\x08\0\0\0\0\0\0\0<"

# Records of __transaction_state as Kafka 4.3.1 wrote them: the finalized transaction.version, the record, the value.
WRITTEN: dict[str, tuple[int, TransactionRecord, bytes | None]] = {
    "new": (
        2,
        TransactionMetadata("t", 0, 0, 30000, last_update_ms=1795295458428, previous_producer_id=0),
        b"\0\1\0\0\0\0\0\0\0\0\0\0\0\0u0\0\0\0\0\1\xa1\xff\xf2\xb4|\xff\xff\xff\xff\xff\xff\xff\xff\1\0\x08\0\0\0\0\0\0\0\0",
    ),
    "open": (
        2,
        TransactionMetadata(
            "t", 0, 1, 30000, TransactionState.ONGOING, frozenset({A0}), 1795295458508, 1795295458508, 0,
            client_transaction_version=2,
        ),
        b"\0\1\0\0\0\0\0\0\0\0\0\1\0\0u0\1\2\2a\2\0\0\0\0\0\0\0\1\xa1\xff\xf2\xb4\xcc\0\0\1\xa1\xff\xf2\xb4\xcc\2\0\x08"
        b"\0\0\0\0\0\0\0\0\2\2\0\2",
    ),
    "open, of an older client": (
        2,
        TransactionMetadata(
            "t", 0, 5, 30000, TransactionState.ONGOING, frozenset({A0}), 1795295458857, 1795295458857, 0
        ),
        b"\0\1\0\0\0\0\0\0\0\0\0\5\0\0u0\1\2\2a\2\0\0\0\0\0\0\0\1\xa1\xff\xf2\xb6)\0\0\1\xa1\xff\xf2\xb6)\1\0\x08\0\0\0\0"
        b"\0\0\0\0",
    ),
    "an abort of nothing": (
        2,
        TransactionMetadata(
            "t", 0, 12, 60000, TransactionState.PREPARE_ABORT, frozenset(), 1795295459250, 1795295459250, 0,
            client_transaction_version=2,
        ),
        b"\0\1\0\0\0\0\0\0\0\0\0\x0c\0\0\xea`\3\1\0\0\1\xa1\xff\xf2\xb7\xb2\0\0\1\xa1\xff\xf2\xb7\xb2\2\0\x08\0\0\0\0\0\0"
        b"\0\0\2\2\0\2",
    ),
    "prepared with the last epoch": (
        2,
        TransactionMetadata(
            "t", 60, 32767, 60000, TransactionState.PREPARE_COMMIT, frozenset({A0}), 1795295505822, 1795295505826, 60,
            61, client_transaction_version=2,
        ),
        b"\0\1\0\0\0\0\0\0\0<\x7f\xff\0\0\xea`\2\2\2a\2\0\0\0\0\0\0\0\1\xa1\xff\xf3m\xa2\0\0\1\xa1\xff\xf3m\x9e\3"
        + PREVIOUS + NEXT + b"\2\2\0\2",
    ),
    "completed with a new producer id": (
        2,
        TransactionMetadata(
            "t", 61, 0, 60000, TransactionState.COMPLETE_COMMIT, frozenset(), 1795295505822, 1795295505827, 60,
            client_transaction_version=2,
        ),
        b"\0\1\0\0\0\0\0\0\0=\0\0\0\0\xea`\4\1\0\0\1\xa1\xff\xf3m\xa3\0\0\1\xa1\xff\xf3m\x9e\2"
        + PREVIOUS + b"\2\2\0\2",
    ),
    "forgotten": (2, TransactionTombstone("t"), None),
}  # fmt: skip


def records_of_kafka() -> list[tuple[bytes, bytes | None]]:
    data = LOG.read_bytes()
    return [
        (bytes(record.key or b""), None if record.value is None else bytes(record.value))
        for pos, header in iter_headers(data)
        for record in iter_records(memoryview(body_of(data, pos, header.size)), header.count, header.base_timestamp)
    ]


@pytest.mark.parametrize("name", WRITTEN)
def test_records_are_encoded_and_decoded_as_by_apache_kafka(name: str):
    version, record, value = WRITTEN[name]
    assert encode_record(record, version) == (KEY, value)
    assert decode_record(KEY, value) == record


def test_a_log_of_apache_kafka_is_decoded_and_encoded_alike():
    """Its last values have version 0, from when transaction.version was 0."""
    versions = set()
    for key, value in records_of_kafka():
        record = decode_record(key, value)
        assert record is not None
        server_version = 0 if value is not None and value[:2] == b"\0\0" else 2
        assert encode_record(record, server_version) == (key, value)
        versions.add(server_version)
    assert versions == {0, 2}


def test_partitions_are_encoded_in_order():
    partitions = frozenset(TopicPartition(topic, index) for topic in "cab" for index in range(20))
    record = TransactionMetadata("t", 1, 0, 1, TransactionState.ONGOING, partitions)
    assert decode_record(*encode_record(record, 2)) == record
    _, value = encode_record(record, 2)
    assert value is not None
    positions = [value.index(b"\2" + topic) for topic in (b"a", b"b", b"c")]
    assert positions == sorted(positions)


def test_values_of_version_0_lose_the_next_producer_id_as_in_kafka():
    record = WRITTEN["prepared with the last epoch"][1]
    assert isinstance(record, TransactionMetadata)
    assert decode_record(*encode_record(record, 0)) == record._replace(
        previous_producer_id=-1, next_producer_id=-1, client_transaction_version=0
    )


def test_records_of_unknown_types_are_ignored():
    assert decode_record(b"\0\1\0\1t", b"\0\1") is None
    assert decode_record(None, b"\0\1") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", None),
        (b"\0", None),
        (b"\0\0\0\5t", None),
        (KEY, b""),
        (KEY, b"\0\2"),
        (KEY, b"\0\1\0"),
        # States that do not exist, or that are never written.
        (KEY, b"\0\0" + bytes(8) + bytes(2) + bytes(4) + b"\x08" + b"\xff\xff\xff\xff" + bytes(16)),
        (KEY, b"\0\0" + bytes(8) + bytes(2) + bytes(4) + b"\6" + b"\xff\xff\xff\xff" + bytes(16)),
        (KEY, b"\0\0" + bytes(8) + bytes(2) + bytes(4) + b"\7" + b"\xff\xff\xff\xff" + bytes(16)),
    ],
)
def test_malformed_records_are_rejected(key: bytes, value: bytes | None):
    with pytest.raises(MalformedError):
        decode_record(key, value)
