"""Produces and consumes records for a test, through the project's own client: no Kafka client is needed.

Its requests have the client id of the test, so they are neither recorded nor hit by faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import monotonic
from typing import Any, NamedTuple

from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.group_descriptions import GroupDescription, describe_group
from kbroker.client.groups import committed_offsets
from kbroker.client.offsets import EARLIEST, LATEST, list_offsets
from kbroker.client.producer import AcknowledgedBatch, BlockingProducer
from kbroker.client.requests import LEADER_ERRORS
from kbroker.common import TopicPartition

# A record to produce: its value; or (key, value), or (key, value, headers) with header keys as text.
Value = bytes | None
ToProduce = Value | tuple[Value, Value] | tuple[Value, Value, Sequence[tuple[str, Value]]]

# Records are sent again for this time while leaders are elected, or have just been killed.
RETRY_FOR_S = 10.0
MAX_POLL = 10_000


class ProducedRecord(NamedTuple):
    partition: int
    offset: int


def produce(
    cluster: ClusterClient, topic: str, records: Iterable[ToProduce], partition: int | None, timestamp: int
) -> list[ProducedRecord]:
    """Produce records with acks=all, and return where each is. Raises BrokerError, BrokerUnreachable.

    Without `partition`, records with a key are divided as Kafka's clients do, others in turn. Not idempotent: a full
    disk has no place for a new producer id. So a record may be stored twice if its broker is killed meanwhile.
    """
    places: dict[int, ProducedRecord] = {}

    def on_acknowledged(batch: AcknowledgedBatch) -> None:
        partition, first = batch.partition.partition, batch.base_offset
        places.update((number, ProducedRecord(partition, first + i)) for i, number in enumerate(batch.numbers))

    producer = BlockingProducer(
        cluster, is_idempotent=False, retried=LEADER_ERRORS, delivery_for_s=RETRY_FOR_S, on_acknowledged=on_acknowledged
    )
    count = len(cluster.topic(topic).leaders)
    for number, record in enumerate(records):
        key, value, *rest = (None, record) if record is None or isinstance(record, bytes) else record
        index = number % count if partition is None and key is None else partition
        producer.add(topic, key, value, rest[0] if rest else (), index, timestamp)
    producer.flush()
    return [places[number] for number in sorted(places)]


def consume(
    cluster: ClusterClient, topic: str, n: int | None, partition: int | None, read_committed: bool, timeout_s: float
) -> list[ConsumedRecord]:
    """Return the first `n` records of a topic; None: all that there are now. Raises TimeoutError if there are fewer."""
    indexes = sorted(cluster.topic(topic).leaders) if partition is None else [partition]
    at = dict.fromkeys((TopicPartition(topic, index) for index in indexes), EARLIEST)
    consumer = PartitionConsumer(cluster, list_offsets(cluster, at), isolation_level=int(read_committed))
    ends = {} if n is not None else list_offsets(cluster, dict.fromkeys(at, LATEST), int(read_committed))
    found: list[ConsumedRecord] = []
    deadline = monotonic() + timeout_s
    while True:
        for tp in [tp for tp, end in ends.items() if consumer.positions.get(tp, end) >= end]:
            consumer.positions.pop(tp, None)
        if not consumer.positions or (n is not None and len(found) >= n):
            return found
        if monotonic() > deadline:
            expected = f"{n} records" if n is not None else f"the records up to {ends}"
            raise TimeoutError(f"{topic} has {len(found)} of {expected} after {timeout_s} s: {found[:20]}")
        found += consumer.poll(MAX_POLL if n is None else n - len(found))


class GroupLag(NamedTuple):
    """A group as `wait_group` compares it. `lag`: None if the group has no committed offset."""

    description: GroupDescription
    lag: int | None

    def summary(self) -> dict[str, Any]:
        return {"members": len(self.description.members), "lag": self.lag, "state": self.description.state}

    def __str__(self) -> str:
        return "{state} with {members} members, lag {lag}".format_map(self.summary())


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
