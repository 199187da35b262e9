"""The state of share partitions, with the responses and the records of Apache Kafka 4.4.0 (share_lines.py)."""

from collections import defaultdict
from pathlib import Path

from kbroker.coordinator.share.records import ShareRecord, ShareSnapshot, ShareTombstone, decode_record, encode_record
from kbroker.coordinator.share.share_partition_state import SharePartitionKey
from tests.unit.support.share_coordinator import Harness, decoded, encoded, without_times
from tests.unit.support.share_lines import run

DATA = Path(__file__).parents[1] / "data"
LINES = (DATA / "share-states-4.4.0.txt").read_text().splitlines()
LOG = (DATA / "share-states-4.4.0.log").read_bytes()
TOPIC_ID = bytes.fromhex(LINES[0].removeprefix("topic "))


def by_partition(records: list[ShareRecord]) -> dict[SharePartitionKey, list[ShareRecord]]:
    found: dict[SharePartitionKey, list[ShareRecord]] = defaultdict(list)
    for record in records:
        found[record.key].append(without_times(record))
    return found


def test_responses_and_records_are_those_of_kafka():
    harness = Harness(topic_id=TOPIC_ID)
    try:
        for line in LINES[1:]:
            assert run(line, TOPIC_ID, harness.send) == line
        assert by_partition(harness.records()) == by_partition(decoded([LOG]))
    finally:
        harness.close()


def test_records_are_encoded_as_kafka_writes_them():
    records = encoded([LOG])
    assert {type(decode_record(*record)) for record in records} >= {ShareSnapshot, ShareTombstone}
    for key, value in records:
        record = decode_record(key, value)
        assert record is not None
        assert encode_record(record) == (key, value)


def test_the_transcript_has_every_error():
    errors = {line.partition(" -> ")[2].split()[0] for line in LINES[1:]}
    assert errors == {
        "NONE", "FENCED_LEADER_EPOCH", "FENCED_STATE_EPOCH", "INVALID_REQUEST", "UNKNOWN_TOPIC_OR_PARTITION", "nothing",
    }  # fmt: skip
