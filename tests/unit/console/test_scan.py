"""Steps of reading a topic: none is skipped, whatever ends a step."""

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from kbroker.cli.common.values import PartitionPosition
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord
from kbroker.client.offsets import READ_COMMITTED, delete_records
from kbroker.client.producer import BlockingProducer
from kbroker.client.transactions import LAST_VERSIONS, BlockingTransactionalProducer
from kbroker.common import TopicPartition
from kbroker.console import scan
from kbroker.console.record_filter import parse_filter
from kbroker.console.scan import Matches, ScanStep, scan_backward, scan_forward, start_positions
from kbroker.testing import Broker

EARLIEST, LATEST = PartitionPosition("earliest"), PartitionPosition("latest")


@pytest.fixture
def cluster(kafka: Broker) -> Iterator[ClusterClient]:
    with kafka.client() as opened:
        yield opened


def fill(cluster: ClusterClient, topic: str, records: int, partitions: int, value: bytes = b"v%d") -> None:
    """Produce records whose timestamps grow, but not strictly; some partitions have more than others."""
    chance = random.Random(1)
    producer = BlockingProducer(cluster)
    for number in range(records):
        partition = number % partitions if number % 5 else 0
        value_of = value % number if b"%d" in value else value
        producer.add(topic, b"%d" % number, value_of, [], partition, 1_000_000 + number + chance.randrange(30))
        if number % 97 == 0:
            producer.flush()
    producer.flush()


def read_all(
    cluster: ClusterClient, topic: str, *, is_backward: bool, matches: Matches | None = None, max_found: int = 37,
    isolation_level: int = 0,
) -> list[ConsumedRecord]:  # fmt: skip
    """Read in steps until the end."""
    read = scan_backward if is_backward else scan_forward
    positions = start_positions(cluster, topic, LATEST if is_backward else EARLIEST, isolation_level)
    found: list[ConsumedRecord] = []
    while True:
        result = read(cluster, positions, ScanStep(topic, matches, max_found, 0.001, isolation_level))
        assert len(result.records) <= max_found
        found += result.records
        if not result.remaining:
            return found
        assert result.positions != positions
        positions = dict(result.positions)


def places(records: list[ConsumedRecord]) -> list[tuple[int, int]]:
    return [(record.partition, record.offset) for record in records]


@pytest.mark.parametrize("is_backward", [False, True])
@pytest.mark.parametrize("text", [None, "7"])
def test_steps_skip_nothing_and_repeat_nothing(
    kafka: Broker, cluster: ClusterClient, is_backward: bool, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "POLL_RECORDS", 7)
    topic = kafka.topic(partitions=3)
    fill(cluster, topic, 700, 3)
    found = read_all(cluster, topic, is_backward=is_backward, matches=parse_filter({"text": text}) if text else None)
    expected = {b"%d" % number for number in range(700) if text is None or text in str(number)}
    assert len(found) == len(expected)
    assert {record.key for record in found} == expected
    for partition in range(3):
        offsets = [offset for at, offset in places(found) if at == partition]
        assert offsets == sorted(offsets, reverse=is_backward)
    # Over all partitions in the order of time, as far as that of the partitions allows it.
    times = [record.timestamp for record in found]
    assert all((later - time) * (-1 if is_backward else 1) > -60 for time, later in pairwise(times))


@pytest.mark.parametrize("is_backward", [False, True])
def test_large_records_end_a_step(
    kafka: Broker, cluster: ClusterClient, is_backward: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "MAX_FOUND_BYTES", 10_000)
    topic = kafka.topic(partitions=2)
    fill(cluster, topic, 60, 2, b"x" * 3000)
    positions = start_positions(cluster, topic, LATEST if is_backward else EARLIEST)
    read = scan_backward if is_backward else scan_forward
    step = read(cluster, positions, ScanStep(topic, None, 500, 0))
    assert 0 < len(step.records) <= 8
    assert sorted(places(read_all(cluster, topic, is_backward=is_backward, max_found=500))) == [
        (partition, offset) for partition, count in ((0, 36), (1, 24)) for offset in range(count)
    ]


@pytest.mark.parametrize("is_backward", [False, True])
def test_aborted_records_and_markers_are_passed(kafka: Broker, cluster: ClusterClient, is_backward: bool) -> None:
    topic = kafka.topic(partitions=1)
    host, _, port = kafka.bootstrap.rpartition(":")
    with ClusterClient([(host, int(port))], client_id="test", max_versions=LAST_VERSIONS) as writer:
        for number, commits in enumerate((True, False, True, False)):
            producer = BlockingTransactionalProducer(writer, topic)
            producer.add(topic, None, b"%d" % number, [], 0, 1_000 + number)
            if commits:
                producer.commit(topic, {TopicPartition(topic, 0): 0})
            producer.flush()
        # Aborts the last one.
        BlockingTransactionalProducer(writer, topic)
    committed = read_all(cluster, topic, is_backward=is_backward, isolation_level=READ_COMMITTED)
    assert sorted(record.value or b"" for record in committed) == [b"0", b"2"]
    everything = read_all(cluster, topic, is_backward=is_backward)
    assert sorted(record.value or b"" for record in everything) == [b"0", b"1", b"2", b"3"]


def test_a_step_goes_on_where_retention_has_deleted(kafka: Broker, cluster: ClusterClient) -> None:
    topic = kafka.topic(partitions=1)
    fill(cluster, topic, 100, 1)
    delete_records(cluster, {(topic, 0): 90})
    forward = scan_forward(cluster, {0: 10}, ScanStep(topic, None, 50, 1))
    assert places(forward.records) == [(0, offset) for offset in range(90, 100)]
    backward = scan_backward(cluster, {0: 50}, ScanStep(topic, None, 50, 1))
    assert (backward.records, backward.remaining) == ([], 0)


def test_a_search_begins_at_a_time_or_an_offset(kafka: Broker, cluster: ClusterClient) -> None:
    topic = kafka.topic(partitions=2)
    producer = BlockingProducer(cluster)
    for number in range(10):
        producer.add(topic, None, b"v", [], 0, 1_000 + number)
    producer.flush()
    assert start_positions(cluster, topic, PartitionPosition("time", 1_004)) == {0: 4, 1: 0}
    assert start_positions(cluster, topic, PartitionPosition("time", 5_000)) == {0: 10, 1: 0}
    assert start_positions(cluster, topic, PartitionPosition("offset", 3)) == {0: 3, 1: 0}
    assert start_positions(cluster, topic, PartitionPosition("last", 3)) == {0: 7, 1: 0}
    assert start_positions(cluster, topic, PartitionPosition("last", 30)) == {0: 0, 1: 0}
