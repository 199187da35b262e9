"""Varints and records: round trips, malformed and damaged bodies."""

import contextlib

import pytest
from aiokafka.record.default_records import _DefaultRecordBatchBuilderPy as AioBuilder
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import MalformedError
from protocol.records.batch import HEADER_SIZE, build_batch
from protocol.records.record import Record, decode_varint, encode_record, encode_varint, iter_records

content = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=10).map(str.encode), content), max_size=3).map(tuple)
timestamps = st.integers(min_value=0, max_value=1 << 45)
new_records = st.lists(st.tuples(timestamps, content, content, headers), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, b"\x00"), (-1, b"\x01"), (1, b"\x02"), (63, b"\x7e"), (-64, b"\x7f"), (64, b"\x80\x01"),
        (-65, b"\x81\x01"), (2**31 - 1, b"\xfe\xff\xff\xff\x0f"), (-(2**31), b"\xff\xff\xff\xff\x0f"),
        (2**63 - 1, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        (-(2**63), b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
    ],
)  # fmt: skip
def test_varints(value, encoded):
    assert encode_varint(value) == encoded
    assert decode_varint(b"x" + encoded, 1, 10) == (value, 1 + len(encoded))


@given(st.integers(min_value=-(1 << 63), max_value=(1 << 63) - 1))
def test_varints_round_trip(value):
    encoded = encode_varint(value)
    assert decode_varint(encoded, 0, 10) == (value, len(encoded))


def test_varints_that_are_too_long():
    assert decode_varint(b"\x80\x80\x80\x80\x00", 0) == (0, 5)
    with pytest.raises(MalformedError):
        decode_varint(b"\x80\x80\x80\x80\x80\x00", 0)
    with pytest.raises(MalformedError):
        decode_varint(b"\x80" * 10 + b"\x00", 0, 10)
    with pytest.raises(IndexError):
        decode_varint(b"\x80\x80", 0)


@given(new_records)
def test_records_round_trip_and_equal_the_encoding_of_aiokafka(records):
    batch = build_batch(records)
    builder = AioBuilder(2, 0, 0, -1, -1, -1, 1 << 30)
    for i, (timestamp, key, value, extra) in enumerate(records):
        assert builder.append(i, timestamp, key, value, [(name.decode(), data) for name, data in extra])
    body = bytes(batch[HEADER_SIZE:])
    assert body == bytes(builder.build())[HEADER_SIZE:]
    read = list(iter_records(memoryview(body), len(records), records[0][0]))
    assert read == [Record(0, i, *record) for i, record in enumerate(records)]


def body_of_three() -> bytes:
    return b"".join(encode_record(i, i, b"key", b"value", [(b"name", b"content")]) for i in range(3))


def test_offset_deltas_may_have_gaps():
    body = encode_record(0, 0, None, b"a") + encode_record(7, -5, None, None)
    assert [(r.offset_delta, r.timestamp) for r in iter_records(body, 2, 100)] == [(0, 100), (7, 95)]


@pytest.mark.parametrize("count", [-1, 0, 2, 4, 1 << 31, -(1 << 31)])
def test_a_record_count_that_contradicts_the_body_is_malformed(count):
    with pytest.raises(MalformedError):
        list(iter_records(body_of_three(), count, 0))


def test_an_empty_body_has_no_records():
    assert list(iter_records(b"", 0, 0)) == []


def record(*parts: bytes) -> bytes:
    body = b"".join(parts)
    return encode_varint(len(body)) + body


HEAD = b"\0\0\0"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(encode_varint(-1) + bytes(6), id="negative length"),
        pytest.param(encode_varint(1 << 20) + bytes(6), id="length beyond the body"),
        pytest.param(encode_varint(5) + bytes(6), id="length below the smallest record's"),
        pytest.param(record(HEAD, b"\x01\x01\0", b"\0"), id="a byte too many"),
        pytest.param(record(HEAD, encode_varint(1 << 30), b"\x01\0"), id="key beyond the record"),
        pytest.param(record(HEAD, b"\x01", encode_varint(1 << 30), b"\0"), id="value beyond the record"),
        pytest.param(record(HEAD, b"\x01\x01", encode_varint(-1)), id="negative header count"),
        pytest.param(record(HEAD, b"\x01\x01", encode_varint(1 << 30)), id="more headers than bytes"),
        pytest.param(record(HEAD, b"\x01\x01", b"\x02", b"\x01", b"\x01"), id="null header key"),
        pytest.param(record(HEAD, b"\x01\x01", b"\x02", encode_varint(100), b"\x01"), id="header key beyond"),
        pytest.param(record(HEAD, b"\x01\x01", b"\x02", b"\0", encode_varint(100)), id="header value beyond"),
        pytest.param(record(HEAD, b"\x80" * 6), id="overlong key length"),
    ],
)
def test_malformed_records(body):
    with pytest.raises(MalformedError):
        list(iter_records(body, 1, 0))


def test_a_field_may_not_reach_into_the_next_record():
    body = encode_record(0, 0, b"key", b"value") + encode_record(1, 0, b"key", b"value")
    assert len(list(iter_records(body, 2, 0))) == 2
    key_length, value_length = 4, 8
    for position in (key_length, value_length):
        bad = bytearray(body)
        bad[position] += 2
        with pytest.raises(MalformedError):
            list(iter_records(bad, 2, 0))


@given(st.data())
def test_damaged_bodies_are_malformed_or_other_records(data):
    body = bytearray(body_of_three())
    for _ in range(data.draw(st.integers(min_value=1, max_value=4))):
        body[data.draw(st.integers(min_value=0, max_value=len(body) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(min_value=0, max_value=len(body)))
    for piece in (body, body[:cut]):
        with contextlib.suppress(MalformedError):
            assert len(list(iter_records(piece, 3, 0))) == 3
