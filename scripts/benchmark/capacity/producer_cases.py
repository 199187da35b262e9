"""Cases of producers with a producer id: their sequences advance with each batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from protocol.apis import ApiKey
from protocol.messages.k22_init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from protocol.messages.k24_add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from protocol.messages.k26_end_txn import EndTxnRequest
from scripts.benchmark.capacity import requests
from scripts.benchmark.capacity.case import Prepare
from scripts.benchmark.capacity.client import Load
from scripts.benchmark.capacity.data_cases import PARTITIONS
from scripts.benchmark.capacity.requests import Topic
from scripts.benchmark.capacity.server import Server

# Newer versions of these belong to transactions v2 (KIP-890), in which Produce adds partitions.
ADD_PARTITIONS_VERSION = 3
END_TXN_VERSION = 4
MAX_PRODUCE_VERSION = 11
TIMEOUT_MS = 600_000

Producer = tuple[int, int]


def idempotent(records: int, size: int, *, connections: int = 4, in_flight: int = 5) -> Prepare:
    """Like the plain Produce cases, but each connection is an idempotent producer."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        version = server.version(ApiKey.PRODUCE)
        with server.topic(PARTITIONS) as topic:
            producers = [init_producer_id(server, None) for _ in range(connections)]
            yield produce_load(topic, [(producer, None) for producer in producers], records, size, in_flight, version)

    return prepare


def transactional(records: int, size: int, *, connections: int = 4, in_flight: int = 5) -> Prepare:
    """Each connection is a transactional producer, whose transaction is committed after the measurement."""

    @contextmanager
    def prepare(server: Server) -> Iterator[Load]:
        version = min(server.version(ApiKey.PRODUCE), MAX_PRODUCE_VERSION)
        with server.topic(PARTITIONS) as topic:
            producers = [
                (init_producer_id(server, transactional_id), transactional_id)
                for transactional_id in (f"{topic[0]}-{number}" for number in range(connections))
            ]
            for producer, transactional_id in producers:
                add_partitions(server, producer, transactional_id, topic)
            yield produce_load(topic, producers, records, size, in_flight, version)
            for (producer_id, epoch), transactional_id in producers:
                end = EndTxnRequest(
                    transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=True
                )
                server.request(end, lambda response: response.error_code, END_TXN_VERSION)

    return prepare


def produce_load(
    topic: Topic,
    producers: Sequence[tuple[Producer, str | None]],
    records: int,
    size: int,
    in_flight: int,
    version: int,
    partitions: int = PARTITIONS,
) -> Load:
    """`producers`: for each connection its producer id and epoch, and its transactional id if it has one."""
    frames = []
    for first, (producer, transactional_id) in enumerate(producers):
        mine = []
        for index in range(partitions):
            batch = requests.batch(records, size, producer, transactional=transactional_id is not None)
            partition = (first + index) % partitions
            mine.append(requests.produce_frame(topic, partition, batch, version, transactional_id))
        frames.append(mine)
    counter = requests.sequence_counter(mine[-1], batch, records)
    return Load(frames, in_flight, requests.produce_error_at(topic, version), counter=counter)


def init_producer_id(server: Server, transactional_id: str | None) -> Producer:
    if transactional_id is not None:
        server.find_coordinator(transactional_id, key_type=1)
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=TIMEOUT_MS)
    response = server.request(request, lambda response: response.error_code)
    assert isinstance(response, InitProducerIdResponse)
    return response.producer_id, response.producer_epoch


def add_partitions(server: Server, producer: Producer, transactional_id: str, topic: Topic) -> None:
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic[0], partitions=list(range(PARTITIONS)))],
    )

    def error_of(response: AddPartitionsToTxnResponse) -> int:
        rows = response.results_by_topic_v3_and_below[0].results_by_partition
        return next((row.partition_error_code for row in rows if row.partition_error_code), 0)

    server.request(request, error_of, ADD_PARTITIONS_VERSION)
