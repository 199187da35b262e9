"""Validation of produced batches, with the results of Kafka; conversion of codecs and timestamps."""

import pytest

from kbroker.common import KafkaError
from kbroker.config import TopicConfig
from kbroker.replica.produce.batch_validation import validate_batch
from kbroker.replica.produce.record_rules import InvalidRecordsError
from kbroker.replica.produce.slow_validation import MAX_DECOMPRESSED
from protocol.errors import ErrorCode
from protocol.records.batch import (
    LOG_APPEND_TIME,
    BatchHeader,
    assemble_batch,
    body_of,
    build_batch,
    crc_of,
    parse_header,
)
from protocol.records.compression import CODEC_NAMES, LZ4, compress, decompress
from protocol.records.record import Record, encode_record, iter_records
from tests.unit.replica.produce.kafka_responses import CASES, HOUR, NOW, TOPICS, Case, good, keyed, stamped
from tests.unit.support.record_validation import validate_completely


def config_of(topic: str, **overrides: str) -> TopicConfig:
    return TopicConfig.of(TOPICS[topic] | {name.replace("_", "."): value for name, value in overrides.items()})


def check(records: bytes, config: TopicConfig, version: int = 13) -> tuple[memoryview | bytearray, BatchHeader, int]:
    return validate_completely(
        lambda: validate_batch(memoryview(bytearray(records)), config, NOW, produce_version=version)
    )


def records_of(batch: memoryview | bytearray) -> list[Record]:
    header = parse_header(batch)
    body = decompress(header.codec, body_of(batch, 0, header.size), 1 << 20)
    return list(iter_records(body, header.count, header.base_timestamp))


def outcome(case: Case, config: TopicConfig) -> tuple[ErrorCode, tuple[int, ...]]:
    try:
        batch, header, _ = check(case.records(NOW), config, case.version)
    except KafkaError as error:
        return error.code, tuple(index for index, _ in getattr(error, "record_errors", ()))
    assert header == parse_header(batch)
    assert header.size == len(batch)
    assert header.crc == crc_of(batch, 0, len(batch))
    return ErrorCode.NONE, ()


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_full_validation_has_the_results_of_kafka(case):
    config = config_of(case.topic, kbroker_record_validation="full")
    assert outcome(case, config) == (case.code, case.bad_records)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_header_validation_has_the_results_of_kafka_except_for_errors_of_records(case):
    expected = (case.code, case.bad_records) if case.header_code is None else (case.header_code, ())
    assert outcome(case, config_of(case.topic)) == expected


def test_null_records():
    with pytest.raises(KafkaError) as refused:
        validate_batch(None, config_of("plain"), NOW, produce_version=13)
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_an_ordinary_batch_is_neither_copied_nor_changed():
    frame = memoryview(bytearray(b"....") + good(NOW))
    before = bytes(frame)
    batch, header, append_time = validate_batch(frame[4:], config_of("plain"), NOW, produce_version=13)
    assert (header, append_time) == (parse_header(before, 4), -1)
    assert before == bytes(frame)
    batch[0] = 77
    assert frame[4] == 77


def test_bytes_after_the_batch_are_removed():
    batch, header, _ = check(good(NOW) + bytes(5), config_of("plain"))
    assert bytes(batch) == good(NOW)
    assert header.size == len(batch)


def test_a_read_only_buffer_is_copied():
    batch, _, _ = validate_batch(memoryview(bytes(good(NOW))), config_of("plain"), NOW, produce_version=13)
    batch[0] = 77
    assert bytes(batch[1:]) == good(NOW)[1:]


@pytest.mark.parametrize("validation", ["header", "full"])
@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES)
def test_log_append_time_changes_only_the_header(codec, validation):
    config = config_of("append-time", kbroker_record_validation=validation)
    sent = build_batch([(5, b"k", b"v", ())], codec=codec)
    batch, header, append_time = check(sent, config)
    assert append_time == NOW
    assert header.attributes == codec | LOG_APPEND_TIME
    assert (header.base_timestamp, header.max_timestamp) == (5, NOW)
    assert header.crc == crc_of(batch, 0, header.size)
    assert bytes(batch[61:]) == sent[61:]


def test_a_wrong_max_timestamp_is_corrected():
    # By the header alone this batch would never be found by its timestamps.
    sent = good(NOW)
    wrong = sent[:35] + (NOW - 5).to_bytes(8, "big") + sent[43:]
    wrong[17:21] = crc_of(wrong, 0, len(wrong)).to_bytes(4, "big")
    batch, header, append_time = check(wrong, config_of("plain"))
    assert (header.max_timestamp, append_time) == (NOW + 2, -1)
    assert bytes(batch) == sent


def test_the_log_append_time_bit_of_a_client_is_cleared():
    sent = build_batch([(NOW, b"k", b"v", ())], attributes=LOG_APPEND_TIME)
    batch, header, _ = check(sent, config_of("plain"))
    assert header.attributes == 0
    assert bytes(batch) == build_batch([(NOW, b"k", b"v", ())])


@pytest.mark.parametrize("source", range(5), ids=CODEC_NAMES)
@pytest.mark.parametrize("target", range(5), ids=CODEC_NAMES)
def test_compression_type_converts(source, target):
    config = config_of("plain", compression_type=CODEC_NAMES[target])
    fields = {"producer_id": 9, "producer_epoch": 1, "base_sequence": 40}
    sent = build_batch([(NOW + i, b"key", b"value" * 50, ((b"h", None),)) for i in range(9)], codec=source, **fields)
    batch, header, _ = check(sent, config)
    assert header.codec == target
    assert header == parse_header(sent)._replace(
        batch_length=header.batch_length, attributes=target, crc=crc_of(batch, 0, len(batch))
    )
    assert records_of(batch) == records_of(sent)
    if source == target:
        assert bytes(batch) == sent


def test_conversion_uses_the_compression_level_of_the_topic():
    text = bytes((i * i * i) % 251 for i in range(20_000))
    sent = build_batch([(NOW, None, text, ())])
    levels = [
        len(check(sent, config_of("plain", compression_type="zstd", compression_zstd_level=level))[0])
        for level in ("-100", "19")
    ]
    assert levels[0] > levels[1]


def test_append_time_and_conversion_together():
    config = config_of("lz4", message_timestamp_type="LogAppendTime")
    batch, header, append_time = check(good(5), config)
    assert (header.attributes, header.max_timestamp, append_time) == (LZ4 | LOG_APPEND_TIME, NOW, NOW)
    assert len(records_of(batch)) == 3


def test_record_errors_have_the_index_of_the_record():
    with pytest.raises(InvalidRecordsError) as refused:
        check(keyed(b"k", None, b"k", None)(NOW), config_of("compact"))
    message = "Compacted topic cannot accept message without key."
    assert refused.value.record_errors == [(1, message), (3, message)]
    with pytest.raises(InvalidRecordsError) as refused:
        check(stamped(0, 2 * HOUR)(NOW), config_of("plain"))
    [(index, message)] = refused.value.record_errors
    assert index == 1
    assert str(NOW + 2 * HOUR) in message


def test_record_errors_are_bounded():
    with pytest.raises(InvalidRecordsError) as refused:
        check(keyed(*[None] * 5000, codec=1)(NOW), config_of("compact"))
    assert len(refused.value.record_errors) == 1000


def test_offsets_out_of_order_in_a_compressed_batch():
    # Kafka refuses them too, but with UNKNOWN_SERVER_ERROR, since it fails while it creates the message.
    body = encode_record(1, 0, b"k", b"v") + encode_record(0, 0, b"k", b"v")
    batch = assemble_batch(
        compress(1, body), count=2, last_offset_delta=1, base_timestamp=NOW, max_timestamp=NOW, attributes=1
    )
    with pytest.raises(InvalidRecordsError):
        check(batch, config_of("compact"))


@pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=CODEC_NAMES[1:])
def test_a_decompression_bomb_is_too_large(codec):
    bomb = assemble_batch(
        compress(codec, bytes(MAX_DECOMPRESSED + 1)),
        count=1,
        last_offset_delta=0,
        base_timestamp=NOW,
        max_timestamp=NOW,
        attributes=codec,
    )
    config = config_of("compact", max_message_bytes=str(1 << 24))
    with pytest.raises(KafkaError) as refused:
        check(bomb, config)
    assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize(
    ("codec", "size", "code"), [(0, 500, ErrorCode.NONE), (1, 93, ErrorCode.NONE), (1, 94, ErrorCode.INVALID_RECORD)]
)
def test_the_size_of_a_record_in_a_compressed_batch_is_bounded(codec: int, size: int, code: ErrorCode):
    """The results are those of Apache Kafka 4.4.0. A record of 94 bytes has 101 bytes with its other fields."""
    case = Case("", "plain", lambda now: bytes(build_batch([(now, b"", b"x" * size, ())], codec=codec)), code)
    assert outcome(case, config_of("plain", max_decompressed_message_bytes="100")) == (code, ())
