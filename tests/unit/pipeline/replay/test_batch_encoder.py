"""The record batches of a replay, decoded by protocol/records, and their sequence numbers."""

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.replay.batch_encoder import (
    MAX_SEQUENCE,
    ProducerSettings,
    ReplayBatch,
    encode_batch,
    read_columns,
    sequence_at,
)
from protocol.records.batch import NewRecord, body_of, build_batch, crc_of, parse_header
from protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, decompress
from protocol.records.record import iter_records

pa = pytest.importorskip("pyarrow", reason="not run: pyarrow is not installed (extra `spark`)")

TARGET = TopicPartition("copy", 2)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(records, first_offset=1000, source=("source", 1)):
    """Return Arrow rows as Spark sends them, of records (timestamp, key, value, headers or None)."""
    return pa.record_batch(
        {
            "target": pa.array([0] * len(records), pa.int32()),
            "due": pa.array([r[0] for r in records], pa.int64()),
            "timestamp": pa.array([r[0] for r in records], pa.int64()),
            "topic": pa.array([source[0]] * len(records), pa.string()),
            "partition": pa.array([source[1]] * len(records), pa.int32()),
            "offset": pa.array(range(first_offset, first_offset + len(records)), pa.int64()),
            "key": pa.array([r[1] for r in records], pa.binary()),
            "value": pa.array([r[2] for r in records], pa.binary()),
            "headers": pa.array(
                [None if r[3] is None else [{"key": n, "value": v} for n, v in r[3]] for r in records], HEADERS
            ),
        }
    )


RECORDS = [
    (1_000_000, None, b"value", None),
    (1_000_005, b"", b"", []),
    (999_000, b"key", None, [("a", b"1"), ("a", None), ("\u00e9", b"")]),
    (2**45, b"\xff" * 70, b"v" * 20_000, [("name" * 50, b"x" * 9000)]),
    (-1, b"k", b"v", [("only", b"one")]),
]


def encode_and_decode(batch, producer):
    data = encode_batch(batch, producer)
    header = parse_header(data)
    assert header.size == len(data)
    assert header.crc == crc_of(data, 0, len(data))
    body = decompress(header.codec, body_of(data, 0, len(data)), 1 << 24)
    return header, list(iter_records(body, header.count, header.base_timestamp))


def expected_headers(record):
    return tuple((name.encode(), value) for name, value in record[3] or ())


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_batch_has_the_records_of_the_rows(codec):
    batch = read_columns(rows(RECORDS), None).batch(TARGET, 70, range(len(RECORDS)))
    header, records = encode_and_decode(batch, ProducerSettings(4711, 0, codec))
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.count) == (4711, 0, 70, 5)
    assert (header.base_timestamp, header.max_timestamp) == (1_000_000, 2**45)
    assert [(r.timestamp, r.key, r.value) for r in records] == [r[:3] for r in RECORDS]
    assert [r.headers for r in records] == [expected_headers(r) for r in RECORDS]
    assert [r.offset_delta for r in records] == [0, 1, 2, 3, 4]


def test_the_bytes_equal_those_of_build_batch():
    many = [(1_000 + n, b"%d" % n, b"v" * (n % 300), [("h", b"x")] * (n % 3)) for n in range(20_000)]
    batch = read_columns(rows(many), None).batch(TARGET, 5, range(len(many)))
    new: list[NewRecord] = [(t, k, v, [(n.encode(), c) for n, c in h]) for t, k, v, h in many]
    expected = build_batch(new, producer_id=1, producer_epoch=0, base_sequence=5)
    assert encode_batch(batch, ProducerSettings(1, 0, NONE)) == expected


def test_origin_headers_follow_the_records_own_headers():
    batch = read_columns(rows(RECORDS), "replay1").batch(TARGET, 0, range(len(RECORDS)))
    _, records = encode_and_decode(batch, ProducerSettings(1, 0, NONE))
    for number, record in enumerate(records):
        assert record.headers[:-4] == expected_headers(RECORDS[number])
        assert record.headers[-4:] == (
            (b"kbroker.origin.topic", b"source"),
            (b"kbroker.origin.partition", b"1"),
            (b"kbroker.origin.offset", b"%d" % (1000 + number)),
            (b"kbroker.replay", b"replay1"),
        )


@pytest.mark.parametrize("start", [0, 1, 3])
def test_slices_of_arrow_batches_are_read(start):
    part = rows(RECORDS).slice(start, 2)
    batch = read_columns(part, None).batch(TARGET, 0, range(2))
    _, records = encode_and_decode(batch, ProducerSettings(1, 0, NONE))
    assert [(r.timestamp, r.key, r.value) for r in records] == [r[:3] for r in RECORDS[start : start + 2]]
    assert [r.headers for r in records] == [expected_headers(r) for r in RECORDS[start : start + 2]]


def test_arrows_large_types_are_read():
    batch = rows(RECORDS)
    large = {"key": pa.large_binary(), "value": pa.large_binary(), "topic": pa.large_string()}
    columns = {name: batch.column(name).cast(large.get(name, batch.column(name).type)) for name in batch.schema.names}
    assert read_columns(pa.record_batch(columns), "r") == read_columns(batch, "r")


def test_an_empty_arrow_batch_is_read():
    assert read_columns(rows(RECORDS).slice(2, 0), "r").targets == []


def test_part_of_a_batch():
    batch = read_columns(rows(RECORDS), None).batch(TARGET, 10, range(5))
    part = batch.part(12, 14)
    assert (part.position, part.end) == (12, 14)
    assert part == read_columns(rows(RECORDS).slice(2, 2), None).batch(TARGET, 12, range(2))
    assert read_columns(rows(RECORDS), None).batch(TARGET, 10, [0, 3]).keys == [None, b"\xff" * 70]


def test_sequence_numbers_wrap_around():
    assert sequence_at(0) == 0
    assert sequence_at(MAX_SEQUENCE) == MAX_SEQUENCE
    assert sequence_at(MAX_SEQUENCE + 1) == 0
    batch = ReplayBatch(TARGET, 2 * (MAX_SEQUENCE + 1) + 9, [1], [b"k"], [b"v"], [b"\0"])
    assert parse_header(encode_batch(batch, ProducerSettings(1, 0, NONE))).base_sequence == 9
