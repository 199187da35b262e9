"""What a replay sends, read back by protocol's own decoder; sequences; Kafka's partitioner."""

import os

import pytest

from kbroker.pipeline.replay.encoding import (
    MAX_SEQUENCE,
    Batch,
    Target,
    Writer,
    columns,
    encoded,
    sequence_of,
)
from kbroker.pipeline.replay.routing import murmur2
from protocol.records.batch import NewRecord, body_of, build_batch, crc_of, parse_header
from protocol.records.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, decompress
from protocol.records.record import iter_records

pa = pytest.importorskip("pyarrow", reason="not run: pyarrow is not installed (extra `spark`)")

TARGET = Target("copy", 2)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(records, first_offset=1000, source=("source", 1)):
    """Arrow's rows of (timestamp, key, value, headers or None) records, as Spark gives them."""
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


def decoded(batch, writer):
    data = encoded(batch, writer)
    header = parse_header(data)
    assert header.size == len(data)
    assert header.crc == crc_of(data, 0, len(data))
    body = decompress(header.codec, body_of(data, 0, len(data)), 1 << 24)
    return header, list(iter_records(body, header.count, header.base_timestamp))


@pytest.mark.parametrize("codec", [NONE, GZIP, SNAPPY, LZ4, ZSTD])
def test_a_batch_holds_what_the_rows_held(codec):
    batch = columns(rows(RECORDS), None).batch(TARGET, 70, range(len(RECORDS)))
    header, records = decoded(batch, Writer(4711, 0, codec))
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.count) == (4711, 0, 70, 5)
    assert (header.base_timestamp, header.max_timestamp) == (1_000_000, 2**45)
    assert [(r.timestamp, r.key, r.value) for r in records] == [r[:3] for r in RECORDS]
    wanted = [tuple((n.encode(), v) for n, v in r[3] or ()) for r in RECORDS]
    assert [r.headers for r in records] == wanted
    assert [r.offset_delta for r in records] == [0, 1, 2, 3, 4]


def test_it_is_byte_for_byte_what_the_protocol_encodes():
    many = [(1_000 + n, b"%d" % n, b"v" * (n % 300), [("h", b"x")] * (n % 3)) for n in range(20_000)]
    batch = columns(rows(many), None).batch(TARGET, 5, range(len(many)))
    new: list[NewRecord] = [(t, k, v, [(n.encode(), c) for n, c in h]) for t, k, v, h in many]
    assert encoded(batch, Writer(1, 0, NONE)) == build_batch(new, producer_id=1, producer_epoch=0, base_sequence=5)


def test_origins_come_after_the_own_headers():
    batch = columns(rows(RECORDS), "replay1").batch(TARGET, 0, range(len(RECORDS)))
    _, records = decoded(batch, Writer(1, 0, NONE))
    for number, record in enumerate(records):
        assert record.headers[:-4] == tuple((n.encode(), v) for n, v in RECORDS[number][3] or ())
        assert record.headers[-4:] == (
            (b"kbroker.origin.topic", b"source"),
            (b"kbroker.origin.partition", b"1"),
            (b"kbroker.origin.offset", b"%d" % (1000 + number)),
            (b"kbroker.replay", b"replay1"),
        )


@pytest.mark.parametrize("start", [0, 1, 3])
def test_rows_cut_out_of_longer_ones(start):
    part = rows(RECORDS).slice(start, 2)
    _, records = decoded(columns(part, None).batch(TARGET, 0, range(2)), Writer(1, 0, NONE))
    assert [(r.timestamp, r.key, r.value) for r in records] == [r[:3] for r in RECORDS[start : start + 2]]
    wanted = [tuple((n.encode(), v) for n, v in r[3] or ()) for r in RECORDS[start : start + 2]]
    assert [r.headers for r in records] == wanted


def test_large_types_of_arrow_are_read_as_well():
    batch = rows(RECORDS)
    large = {"key": pa.large_binary(), "value": pa.large_binary(), "topic": pa.large_string()}
    taken = pa.record_batch({n: batch.column(n).cast(large.get(n, batch.column(n).type)) for n in batch.schema.names})
    assert columns(taken, "r") == columns(batch, "r")


def test_no_rows_are_no_columns():
    assert columns(rows(RECORDS).slice(2, 0), "r").targets == []


def test_a_part_of_a_batch_is_the_batch_of_that_part():
    whole = columns(rows(RECORDS), None).batch(TARGET, 10, range(5))
    part = whole.part(12, 14)
    assert (part.position, part.end) == (12, 14)
    assert part == columns(rows(RECORDS).slice(2, 2), None).batch(TARGET, 12, range(2))
    assert columns(rows(RECORDS), None).batch(TARGET, 10, [0, 3]).keys == [None, b"\xff" * 70]


def test_sequences_begin_anew_after_the_largest():
    assert sequence_of(0) == 0
    assert sequence_of(MAX_SEQUENCE) == MAX_SEQUENCE
    assert sequence_of(MAX_SEQUENCE + 1) == 0
    batch = Batch(TARGET, 2 * (MAX_SEQUENCE + 1) + 9, [1], [b"k"], [b"v"], [b"\0"])
    assert parse_header(encoded(batch, Writer(1, 0, NONE))).base_sequence == 9


def test_keys_are_hashed_as_kafkas_clients_do_it():
    partitioner = pytest.importorskip("kafka.partitioner.default")
    for size in range(40):
        key = os.urandom(size)
        assert murmur2(key) == partitioner.murmur2(key) & 0xFFFFFFFF
