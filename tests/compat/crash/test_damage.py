"""A damaged log in each partition of a topic: what recovery keeps of it, and what clients read from it.

`KBROKER_COMPAT_DAMAGE=all`: a partition for every byte of the last three batches, otherwise for a sample.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.records.batch import HEADER_SIZE, build_batch, iter_headers
from tests.compat.broker_connection import BrokerConnection
from tests.compat.crash.checks import read_topic
from tests.compat.crash.conftest import admin_client, create_topic
from tests.compat.crash.killer import repaired_logs
from tests.compat.crash.proxy import Proxy
from tests.compat.support import DEADLINE_S, BrokerProcess

ALL = os.environ.get("KBROKER_COMPAT_DAMAGE") == "all"
BATCHES, RECORDS = 8, 3
PRODUCE_VERSION = 9

Read = tuple[list[tuple[int, bytes]], bool]


def value(number: int) -> bytes:
    return b"value %d" % number


def idempotent(number: int) -> bytearray:
    now_ms = int(time.time() * 1000)
    first = RECORDS * number
    records = [(now_ms, b"k", value(first + index), ()) for index in range(RECORDS)]
    return build_batch(records, producer_id=4_000_000_000, producer_epoch=0, base_sequence=first)


def produce(connection: BrokerConnection, topic: str, partition: int, batch: bytes) -> tuple[int, int]:
    """Produce a batch, which may be a retry; returns (error code, base offset)."""
    data = PartitionProduceData(index=partition, records=batch)
    topics = [TopicProduceData(name=topic, partition_data=[data])]
    request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
    response = connection.request(request, PRODUCE_VERSION, ProduceResponse).responses[0].partition_responses[0]
    return response.error_code, response.base_offset


@contextmanager
def damaged_logs(
    broker: BrokerProcess, proxy: Proxy, topic: str, partitions: int, *, clean: bool
) -> Iterator[tuple[bytes, list[bytes], Callable[[int, bytes], None]]]:
    """Yield the bytes of a log, its batches as they were sent, and a function that writes a log to a partition. The
    broker is down meanwhile, and is started afterwards."""
    # A broker that was stopped cleanly reads only what follows the last index entry when it opens a log.
    create_topic(admin_client(proxy), topic, partitions, {"index.interval.bytes": "100"})
    sent = [bytes(idempotent(number)) for number in range(BATCHES)]
    with BrokerConnection(proxy.address, "damage", DEADLINE_S) as connection:
        for number, batch in enumerate(sent):
            assert produce(connection, topic, 0, batch) == (0, RECORDS * number)
    if clean:
        broker.stop()
    else:
        broker.kill()
    source = broker.partition_dir(topic, 0)
    (log,) = source.glob("*.log")

    def write(partition: int, data: bytes) -> None:
        target = source.with_name(f"{topic}-{partition}")
        if clean:
            for path in source.iterdir():
                if path.name != log.name:
                    shutil.copy(path, target / path.name)
        (target / log.name).write_bytes(data)

    yield log.read_bytes(), sent, write
    broker.start()


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_retries_after_a_truncation_are_stored_once(broker: BrokerProcess, proxy: Proxy, name: str) -> None:
    size = len(idempotent(0))
    cuts = [BATCHES * size - less for less in range(3 * size + 1)]
    if not ALL:
        cuts = sorted({*cuts[:: 3 * size], *cuts[::size], *Random(1).sample(cuts, 30)})
    with damaged_logs(broker, proxy, name, 1 + len(cuts), clean=False) as (data, sent, write):
        ends = [position + header.size for position, header in iter_headers(data)]
        for partition, cut in enumerate(cuts, 1):
            write(partition, data[:cut])
    repairs = "\n".join(repaired_logs(broker))
    read = read_topic(proxy.address, name, 1 + len(cuts))
    all_records = [(number, b"k", value(number)) for number in range(RECORDS * BATCHES)]
    with BrokerConnection(proxy.address, "damage", DEADLINE_S) as connection:
        for partition, cut in enumerate(cuts, 1):
            survive = sum(end <= cut for end in ends)
            assert read[partition] == all_records[: RECORDS * survive], cut
            valid = ends[survive - 1]
            cut_off = re.search(rf"partition={name}-{partition} .*cut from {cut} to {valid} bytes", repairs)
            assert (cut_off is not None) == (valid < cut), cut
            for number in range(BATCHES - 5, BATCHES):
                assert produce(connection, name, partition, sent[number]) == (0, RECORDS * number), cut
    assert read_topic(proxy.address, name, 1 + len(cuts)) == [all_records] * (1 + len(cuts))
    broker.restart()
    assert repaired_logs(broker) == []
    assert read_topic(proxy.address, name, 1 + len(cuts)) == [all_records] * (1 + len(cuts))


# Bits that the CRC covers, and the length, in a log that is not checked: after a clean stop.
FIELDS = {"length": (10, 12), "crc": (17, 21), "attributes": (22, 23), "delta": (23, 27), "producer": (43, 57)}
DAMAGED = 4


def by_kafka_python(
    address: str, topic: str, partition: int, start: int, end: int, limit_s: float = DEADLINE_S
) -> Read:
    records: list[tuple[int, bytes]] = []
    with closing(KafkaConsumer(bootstrap_servers=address, auto_offset_reset="none", fetch_max_wait_ms=50)) as consumer:
        tp = TopicPartition(topic, partition)
        consumer.assign([tp])
        consumer.seek(tp, start)
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and (not records or records[-1][0] < end - 1):
            try:
                for record in consumer.poll(100).get(tp, ()):
                    records.append((record.offset, record.value))
            except KafkaError:
                return records, True
    return records, False


def by_confluent(address: str, topic: str, partition: int, start: int, end: int, limit_s: float = DEADLINE_S) -> Read:
    records: list[tuple[int, bytes]] = []
    settings: dict[str, Any] = {"bootstrap.servers": address, "group.id": "damage", "check.crcs": True, "log_level": 2}
    consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "error"})
    try:
        consumer.assign([ConfluentPartition(topic, partition, start)])
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and (not records or records[-1][0] < end - 1):
            message = consumer.poll(0.1)
            if message is not None and message.error():
                return records, True
            if message is not None:
                records.append((message.offset(), message.value()))
    except KafkaException:
        return records, True
    finally:
        consumer.close()
    return records, False


@pytest.mark.feature("kill -9")
@pytest.mark.parametrize(
    "read",
    [
        pytest.param(by_kafka_python, marks=pytest.mark.client("kafka_python"), id="kafka_python"),
        pytest.param(by_confluent, marks=pytest.mark.client("confluent_kafka"), id="confluent_kafka"),
    ],
)
def test_clients_see_an_error_and_no_wrong_data(
    broker: BrokerProcess, proxy: Proxy, name: str, read: Callable[..., Read]
) -> None:
    random = Random(2)
    size = len(idempotent(0))
    positions = [("body", random.randrange(8 * HEADER_SIZE, 8 * size)) for _ in range(20 if ALL else 2)]
    for field, (start, end) in FIELDS.items():
        positions += [(field, random.randrange(8 * start, 8 * end)) for _ in range(20 if ALL else 1)]
    with damaged_logs(broker, proxy, name, 1 + len(positions), clean=True) as (data, _, write):
        position, header = list(iter_headers(data))[DAMAGED]
        for partition, (_, bit) in enumerate(positions, 1):
            bad = bytearray(data)
            bad[position + bit // 8] ^= 0x80 >> bit % 8
            write(partition, bytes(bad))
    last = RECORDS * BATCHES
    for partition, where in enumerate(positions, 1):
        # To librdkafka a batch that is too long has been cut short: it fetches it repeatedly without an error.
        endless = where[0] == "length"
        records, error = read(proxy.address, name, partition, 0, last, 3.0 if endless else DEADLINE_S)
        assert records == [(number, value(number)) for number in range(len(records))], where
        assert len(records) <= header.base_offset, where
        assert error or endless, where
        # The records after the damage can still be read.
        following = header.next_offset
        rest, error = read(proxy.address, name, partition, following, last)
        assert not error, where
        assert rest == [(number, value(number)) for number in range(following, last)], where
    assert read(proxy.address, name, 0, 0, last) == ([(number, value(number)) for number in range(last)], False)
