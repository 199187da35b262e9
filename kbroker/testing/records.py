"""Produces and consumes records for a test, through the project's own client: no Kafka client is needed.

Its requests have the client id of the test, so they are neither recorded nor hit by faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import monotonic, sleep
from typing import NamedTuple, TypeVar
from zlib import crc32

from kbroker.client.admin import list_offsets
from kbroker.client.cluster import ClusterClient
from kbroker.client.connection import BrokerUnreachable
from kbroker.client.group_descriptions import GroupDescription, describe_group
from kbroker.client.groups import committed_offsets
from kbroker.client.requests import LEADER_ERRORS, Address, BrokerError, check, partition_text
from kbroker.common import TopicPartition
from kbroker.testing.faults import TEST_CLIENT_ID
from protocol.messages.k00_produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k01_fetch import PartitionData as FetchedPartition
from protocol.records.batch import NewRecord, build_batch, iter_batch_records, iter_headers
from protocol.records.record import Header

T = TypeVar("T")

# A record to produce: its value; or (key, value), or (key, value, headers) with header keys as text.
Value = bytes | None
ToProduce = Value | tuple[Value, Value] | tuple[Value, Value, Iterable[tuple[str, Value]]]

LATEST, EARLIEST = -1, -2
RETRY_FOR_S, POLL_S = 10.0, 0.02
FETCH_WAIT_MS, FETCH_BYTES = 50, 8 << 20


class FetchedRecord(NamedTuple):
    """`timestamp`: milliseconds since the epoch. `headers`: keys as text."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class ProducedRecord(NamedTuple):
    partition: int
    offset: int


def client(bootstrap: Iterable[str]) -> ClusterClient:
    """Return a client of the test: a new one for each call, since threads and forked processes must not share it."""
    addresses: list[Address] = []
    for address in bootstrap:
        host, _, port = address.rpartition(":")
        addresses.append((host, int(port)))
    return ClusterClient(addresses, client_id=TEST_CLIENT_ID)


def _retried(cluster: ClusterClient, request: Callable[[], T]) -> T:
    """Repeat a request for RETRY_FOR_S while leaders are elected, or have just been killed.

    A Produce whose broker was killed before it has responded may thus be stored twice.
    """
    deadline = monotonic() + RETRY_FOR_S
    while True:
        try:
            return request()
        except (BrokerError, BrokerUnreachable) as error:
            is_final = isinstance(error, BrokerError) and error.code not in LEADER_ERRORS
            if is_final or monotonic() > deadline:
                raise
        cluster.reset()
        sleep(POLL_S)


# Produce.


def produce(
    cluster: ClusterClient, topic: str, records: Iterable[ToProduce], partition: int | None, timestamp: int
) -> list[ProducedRecord]:
    """Produce records with acks=all, and return where each is. Raises BrokerError, BrokerUnreachable.

    Without `partition`, records with a key are divided by its CRC, others in turn.
    """
    indexes = sorted(cluster.topic(topic).leaders)
    by_partition: dict[int, list[NewRecord]] = {}
    places: list[tuple[int, int]] = []
    for number, record in enumerate(records):
        key, value, headers = _parts(record)
        index = partition if partition is not None else indexes[(number if key is None else crc32(key)) % len(indexes)]
        batch = by_partition.setdefault(index, [])
        places.append((index, len(batch)))
        batch.append((timestamp, key, value, headers))
    first = {index: _produce_batch(cluster, topic, index, batch) for index, batch in by_partition.items()}
    return [ProducedRecord(index, first[index] + position) for index, position in places]


def _parts(record: ToProduce) -> tuple[Value, Value, list[Header]]:
    if record is None or isinstance(record, bytes):
        return None, record, []
    key, value, *rest = record
    headers: Iterable[tuple[str, Value]] = rest[0] if rest else ()
    return key, value, [(name.encode(), content) for name, content in headers]


def _produce_batch(cluster: ClusterClient, topic: str, index: int, batch: list[NewRecord]) -> int:
    """Return the offset of the first record."""
    data = PartitionProduceData(index=index, records=build_batch(batch))
    request = ProduceRequest(
        acks=-1, timeout_ms=10_000, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
    )

    def send() -> int:
        response = cluster.leader(topic, index).request(request, ProduceResponse)
        row = response.responses[0].partition_responses[0]
        check(row.error_code, partition_text((topic, index)), row.error_message)
        return row.base_offset

    return _retried(cluster, send)


# Consume.


def consume(
    cluster: ClusterClient, topic: str, n: int | None, partition: int | None, read_committed: bool, timeout_s: float
) -> list[FetchedRecord]:
    """Return the first `n` records of a topic; None: all that there are now. Raises TimeoutError if there are fewer."""
    indexes = sorted(cluster.topic(topic).leaders) if partition is None else [partition]
    at = {TopicPartition(topic, index): EARLIEST for index in indexes}
    positions = dict(_retried(cluster, lambda: list_offsets(cluster, at)))
    ends = {}
    if n is None:
        ends = _retried(cluster, lambda: list_offsets(cluster, dict.fromkeys(at, LATEST), int(read_committed)))
    found: list[FetchedRecord] = []
    deadline = monotonic() + timeout_s
    while len(found) < n if n is not None else any(positions[at] < end for at, end in ends.items()):
        if monotonic() > deadline:
            expected = f"{n} records" if n is not None else f"the records up to {ends}"
            raise TimeoutError(f"{topic} has {len(found)} of {expected} after {timeout_s} s: {found[:20]}")
        for tp in positions:
            if n is None and positions[tp] >= ends[tp]:
                continue
            for record in _fetch(cluster, tp, positions, read_committed):
                found.append(record)
    return found if n is None else found[:n]


def _fetch(
    cluster: ClusterClient, tp: TopicPartition, positions: dict[TopicPartition, int], read_committed: bool
) -> list[FetchedRecord]:
    """Fetch from one partition, and move its position behind what was read."""
    wanted = FetchPartition(partition=tp.partition, fetch_offset=positions[tp], partition_max_bytes=FETCH_BYTES)
    request = FetchRequest(
        replica_id=-1, max_wait_ms=FETCH_WAIT_MS, min_bytes=1, max_bytes=FETCH_BYTES,
        isolation_level=int(read_committed), topics=[FetchTopic(topic=tp.topic, partitions=[wanted])],
    )  # fmt: skip

    def read() -> FetchedPartition:
        response = cluster.leader(*tp).request(request, FetchResponse)
        check(response.error_code, partition_text(tp))
        row = response.responses[0].partitions[0]
        check(row.error_code, partition_text(tp))
        return row

    row = _retried(cluster, read)
    records = []
    for record, next_offset in _records(row):
        if record is not None and record[0] >= positions[tp]:
            offset, timestamp, key, value, headers = record
            named = [(name.decode(errors="replace"), content) for name, content in headers]
            records.append(FetchedRecord(*tp, offset, timestamp, key, value, named))
        positions[tp] = max(positions[tp], next_offset)
    return records


def _records(
    row: FetchedPartition,
) -> Iterator[tuple[tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]] | None, int]]:
    """Yield each record with the offset from which to continue; None for batches that consumers do not see."""
    data = bytes(row.records or b"")
    aborted = {(each.producer_id, each.first_offset) for each in row.aborted_transactions or ()}
    open_aborted: set[int] = set()
    for position, header in iter_headers(data):
        open_aborted |= {producer for producer, first in aborted if first <= header.base_offset}
        if header.is_control:
            open_aborted.discard(header.producer_id)
            aborted = {(producer, first) for producer, first in aborted if first > header.base_offset}
        elif not (header.is_transactional and header.producer_id in open_aborted):
            batch = data[position : position + header.size]
            for record in iter_batch_records(batch, header):
                timestamp = header.max_timestamp if header.is_log_append_time else record.timestamp
                offset = header.base_offset + record.offset_delta
                yield (offset, timestamp, record.key, record.value, record.headers), offset + 1
        yield None, header.next_offset


# Groups.


class GroupLag(NamedTuple):
    """A group as `wait_group` compares it. `lag`: None if the group has no committed offset."""

    description: GroupDescription
    lag: int | None

    def __str__(self) -> str:
        return f"{self.description.state} with {len(self.description.members)} members, lag {self.lag}"


def group_lag(cluster: ClusterClient, group: str, topics: Iterable[str] | None) -> GroupLag:
    """Return a group with its lag in these topics; None: in all topics with a committed offset.

    All their partitions count. A group that has committed nothing in one of them yet is at its first record: otherwise
    the lag would be 0 after the first poll, which may return records of one partition only.
    """
    description = describe_group(cluster, group)
    committed = committed_offsets(cluster, group)
    names = {tp.topic for tp in committed} if topics is None else set(topics)
    if not any(tp.topic in names for tp in committed):
        return GroupLag(description, None)
    partitions = [TopicPartition(name, index) for name in names for index in cluster.topic(name).leaders]
    starts = list_offsets(cluster, {tp: EARLIEST for tp in partitions if tp not in committed})
    positions = {**starts, **committed}
    ends = list_offsets(cluster, dict.fromkeys(partitions, LATEST))
    return GroupLag(description, sum(max(0, ends[tp] - positions[tp]) for tp in partitions))
