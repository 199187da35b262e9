"""Record batches: written and read as other clients do, damaged ones, transaction markers."""

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

from protocol.errors import MalformedError
from protocol.records import batch as batches
from protocol.records.batch import (
    HEADER_SIZE,
    LOG_APPEND_TIME,
    BatchHeader,
    body_of,
    build_batch,
    crc_of,
    iter_headers,
    parse_header,
    patch_max_timestamp,
)
from protocol.records.compression import decompress
from protocol.records.control import EndTransactionMarker, build_end_marker, parse_control_type, parse_end_marker
from protocol.records.record import iter_records
from tests.unit.protocol.records import java_batches
from tests.unit.support.batch_fields import patch_base_offset, patch_leader_epoch

CODECS = range(5)


def records_of(buf: bytes, pos: int = 0) -> list[tuple[object, ...]]:
    header = parse_header(buf, pos)
    body = decompress(header.codec, body_of(buf, pos, header.size), 1 << 20)
    return [(r.timestamp, r.key, r.value, r.headers) for r in iter_records(body, header.count, header.base_timestamp)]


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_the_java_client_is_read(codec):
    raw = java_batches.BY_CODEC[codec]
    header = parse_header(raw)
    assert header == BatchHeader(
        base_offset=77,
        batch_length=len(raw) - 12,
        leader_epoch=5,
        magic=2,
        crc=crc_of(raw, 0, len(raw)),
        attributes=codec,
        last_offset_delta=3,
        base_timestamp=1700000000000,
        max_timestamp=1700000009999,
        producer_id=4242,
        producer_epoch=3,
        base_sequence=9,
        count=4,
    )
    assert (header.size, header.codec, header.last_offset, header.next_offset) == (len(raw), codec, 80, 81)
    assert not header.is_control
    assert not header.is_transactional
    assert not header.is_log_append_time
    assert records_of(raw) == java_batches.RECORDS


def built(codec: int = 0, **fields: int) -> bytearray:
    return build_batch(java_batches.RECORDS, codec=codec, **fields)


def test_a_batch_is_written_byte_for_byte_as_by_the_java_client():
    ours = built(base_offset=77, leader_epoch=5, producer_id=4242, producer_epoch=3, base_sequence=9)
    assert ours == java_batches.NONE
    assert build_end_marker(EndTransactionMarker(True, 12), 4242, 3, 1700000000000)[16:] == java_batches.MARKER[16:]


@pytest.mark.parametrize("codec", CODECS)
def test_other_clients_read_built_batches(codec):
    raw = bytes(built(codec, base_offset=1000))
    expected = [(1000 + i, *record[:3]) for i, record in enumerate(java_batches.RECORDS)]
    readers = [AioBatch(bytearray(raw))]
    if codec < 2:  # kafka-python has the other codecs only with further packages
        readers.append(KafkaPythonBatch(raw))
    for reader in readers:
        assert reader.validate_crc()
        assert [(r.offset, r.timestamp, r.key, r.value) for r in reader] == expected


def test_uncompressed_bytes_equal_those_of_kafka_python():
    builder = KafkaPythonBuilder(2, 0, 0, 9000, 4, 17, 1 << 20)
    for i, (timestamp, key, value, headers) in enumerate(java_batches.RECORDS):
        builder.append(i, timestamp, key, value, [(name.decode(), content) for name, content in headers])
    expected = bytes(builder.build())
    ours = built(producer_id=9000, producer_epoch=4, base_sequence=17, leader_epoch=parse_header(expected).leader_epoch)
    assert ours == expected


def test_offset_and_epoch_are_patched_outside_the_crc():
    stream = memoryview(bytearray(b"before") + built())
    size = len(stream) - 6
    patch_base_offset(stream, 6, 1 << 40)
    patch_leader_epoch(stream, 6, 31)
    header = parse_header(stream, 6)
    assert (header.base_offset, header.leader_epoch) == (1 << 40, 31)
    assert header.crc == crc_of(stream, 6, size)
    assert records_of(stream, 6) == java_batches.RECORDS


def test_append_time_is_stamped_with_a_new_crc():
    batch = bytearray(3) + built(codec=1)
    patch_max_timestamp(batch, 3, len(batch) - 3, 1 | LOG_APPEND_TIME, 1800000000000)
    header = parse_header(batch, 3)
    assert header.is_log_append_time
    assert (header.codec, header.base_timestamp, header.max_timestamp) == (1, 1700000000000, 1800000000000)
    assert header.crc == crc_of(batch, 3, len(batch) - 3)


def test_complete_batches_are_iterated_and_an_incomplete_one_is_left_out():
    first, second = built(), built(codec=4, base_offset=4)
    stream = first + second + first[:-1]
    assert [(pos, h.base_offset, h.size) for pos, h in iter_headers(stream)] == [
        (0, 0, len(first)),
        (len(first), 4, len(second)),
    ]
    assert [pos for pos, _ in iter_headers(stream, len(first))] == [len(first)]
    assert list(iter_headers(first[: HEADER_SIZE - 1])) == []


@pytest.mark.parametrize("length", [-1, 0, 48, -(1 << 31)])
def test_an_impossible_batch_length_is_malformed(length):
    batch = built()
    batch[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(MalformedError):
        list(iter_headers(batch))


def test_a_header_that_is_cut_off_is_malformed():
    with pytest.raises(MalformedError):
        parse_header(built()[: HEADER_SIZE - 1])
    with pytest.raises(MalformedError):
        parse_header(built(), 1 << 20)


def test_end_markers():
    header = parse_header(java_batches.MARKER)
    assert header.is_control
    assert header.is_transactional
    assert header.base_sequence == batches.NO_SEQUENCE
    [(_, key, value, _)] = records_of(java_batches.MARKER)
    assert parse_end_marker(key, value) == EndTransactionMarker(True, 12)
    [(_, key, value, _)] = records_of(build_end_marker(EndTransactionMarker(False, 3), 1, 0, 5))
    assert parse_end_marker(key, value) == EndTransactionMarker(False, 3)
    assert parse_control_type(b"\0\0\0\x05") == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b""),
        (b"\0\0\0", b"\0\0\0\0\0\0"),
        (b"\xff\xff\0\0", b"\0\0\0\0\0\0"),
        (b"\0\0\0\x05", b"\0\0\0\0\0\0"),
        (b"\0\0\0\0", None),
        (b"\0\0\0\0", b"\xff\xff\0\0\0\0"),
    ],
)
def test_malformed_end_markers(key, value):
    with pytest.raises(MalformedError):
        parse_end_marker(key, value)
