"""The client programs, the same for every server: Kafka's performance tools, and some small ones."""

import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

from protocol.apis import ApiKey
from protocol.client import ClientConnection, EncodedRequest, Response
from protocol.errors import error_name
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from protocol.messages.k01_fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.k20_delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.records.batch import build_batch, iter_headers
from protocol.schema.message import Message
from scripts.benchmark.peers import HERE, Peer, java

if TYPE_CHECKING:
    from confluent_kafka import Producer

M = TypeVar("M", bound=Message)

CLIENT_ID = "bench"
LATEST = -1
# The last version of Produce, and one of Fetch, with the names of topics.
PRODUCE_VERSION, FETCH_VERSION = 12, 11
# IncrementalAlterConfigs: types of resources, and operations.
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1

# Much longer than any run of transactions takes.
STUCK_S = 180
# Clients in Java, as source files that `java` compiles.
PROGRAMS = HERE / "programs"

_PRODUCED = re.compile(r"(\d+) (?:steady state )?records sent, ([\d.]+) records/sec")


def run(command: list[str], timeout: float = 300) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode:
        raise SystemExit(f"client failed: {' '.join(command[:8])} ...\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return done.stdout


def create_topic(peer: Peer, topic: str, partitions: int, **configs: str) -> None:
    """`configs`: topic configs, with `_` in place of `.` in their names."""
    rows = [CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()]
    with closing(Connection(peer.port)) as connection:
        connection.create_topic(
            CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1, configs=rows)
        )


def with_warm_up(records: int) -> int:
    """Return how many records `produce` writes."""
    return records + max(records // 5, 1)


def produce(peer: Peer, topic: str, records: int, size: int, *properties: str, throughput: int = -1) -> float:
    """Run ProducerPerformance; return records per second after its warm-up."""
    total = with_warm_up(records)
    output = run(
        java("org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", peer.bootstrap, "--topic", topic,
             "--num-records", str(total), "--warmup-records", str(total - records), "--record-size", str(size),
             "--throughput", str(throughput), "--reporting-interval", "600000",
             "--command-property", "acks=all", "enable.idempotence=true", *properties)
    )  # fmt: skip
    found = _PRODUCED.findall(output)
    if not found:
        raise SystemExit(f"ProducerPerformance printed no summary:\n{output}")
    return float(found[-1][1])


def consume(peer: Peer, topic: str, records: int, *properties: str) -> float:
    """Run ConsumerPerformance; return records per second, without the time for joining the group."""
    given = ["--command-property", *properties] if properties else []
    output = run(
        java("org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", peer.bootstrap, "--topic", topic,
             "--num-records", str(records), "--hide-header", "--timeout", "60000", *given)
    )  # fmt: skip
    row = [part.strip() for part in output.strip().splitlines()[-1].split(",")]
    if int(row[4]) < records:
        raise SystemExit(f"ConsumerPerformance read {row[4]} of {records} records")
    return float(row[-1])


def fill(peer: Peer, topic: str, megabytes: int, keys: int) -> None:
    """Write records of 100 B to 1 KiB with random keys out of `keys`, the same for every server (Changelog.java)."""
    run(java(str(PROGRAMS / "Changelog.java"), peer.bootstrap, topic, str(megabytes), str(keys)))


def transactions(peer: Peer, topic: str, producers: int, count: int, records: int, abort_every: int = 0) -> float:
    """Write transactions of records of 100 bytes (Transactions.java); return transactions per second.

    Apache Kafka 4.3.1 sometimes leaves a transactional id in a state in which it returns CONCURRENT_TRANSACTIONS
    forever, and the client retries forever. Such a run is reported and repeated.
    """
    numbers = [str(number) for number in (producers, count, records, abort_every)]
    for attempt in range(3):
        ids = f"{topic}-{attempt}"
        try:
            return float(run(java(str(PROGRAMS / "Transactions.java"), peer.bootstrap, topic, ids, *numbers), STUCK_S))
        except subprocess.TimeoutExpired:
            print(f"\n{peer.name}: transactions did not end in {STUCK_S} s, repeated", file=sys.stderr, flush=True)
    raise SystemExit(f"{peer.name}: transactions do not end")


def latency(peer: Peer, topic: str, mode: str, records: int, rate: int = 2000) -> tuple[float, float]:
    """Return (p50, p99) in microseconds; `mode` is produce or end-to-end."""
    command = java(str(PROGRAMS / "Latency.java"), peer.bootstrap, topic, mode, str(records), str(rate))
    p50, p99, _ = run(command).split()
    return float(p50), float(p99)


def librdkafka_producer(bootstrap: str, **settings: object) -> "Producer":
    """`settings`: more of librdkafka's, with `_` in place of `.` in their names."""
    from confluent_kafka import Producer

    more = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({
        "bootstrap.servers": bootstrap, "linger.ms": 5, "batch.size": 65536, "enable.idempotence": True,
        "queue.buffering.max.kbytes": 65536, **more,
    })  # fmt: skip


def send(producer: "Producer", topic: str, value: bytes, partition: int, headers: list[tuple[str, bytes]]) -> None:
    """Produce a record; wait while the producer's queue is full."""
    while True:
        try:
            producer.produce(topic, value, partition=partition, headers=headers)
            return
        except BufferError:
            producer.poll(0.1)


class Connection:
    """A blocking connection, so that the figures include no client start, and hardly any processor time of a client.

    Methods raise SystemExit for an error in a response, if they do not return it.
    """

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client = ClientConnection(CLIENT_ID)
        request: EncodedRequest | None = self._client.start_negotiation()
        while request is not None:
            request = self._client.continue_negotiation(self._exchange(request))

    def close(self) -> None:
        self._socket.close()

    def version(self, key: int) -> int:
        return self._client.version(key)

    def request(self, request: Message, response_class: type[M], version: int | None = None) -> M:
        return self._exchange(self._client.send(request, version)).decode(response_class)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, request: Message, version: int | None = None) -> None:
        """Send a request; `receive` returns its response."""
        self._socket.sendall(self._client.send(request, version).frame)

    def _exchange(self, request: EncodedRequest) -> Response:
        self._socket.sendall(request.frame)
        return self.receive()

    def receive(self) -> Response:
        while (response := self._client.next_response()) is None:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed the connection")
            self._client.receive(data)
        return response

    def create_topic(self, topic: CreatableTopic) -> CreatableTopicResult:
        request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
        result = self.request(request, CreateTopicsResponse).topics[0]
        check(result.error_code, f"the creation of {topic.name}")
        return result

    def delete_topic(self, topic: str) -> None:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=60_000)
        response = self.request(request, DeleteTopicsResponse, min(6, self.version(ApiKey.DELETE_TOPICS)))
        check(response.responses[0].error_code, f"the deletion of {topic}")

    def alter_configs(self, kind: int, name: str, configs: Mapping[str, str | None]) -> None:
        """Set configs of a topic (TOPIC), of a broker, or of all brokers (BROKER, name ""); None deletes a config."""
        rows = [
            AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
            for key, value in configs.items()
        ]
        resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=rows)
        request = IncrementalAlterConfigsRequest(resources=[resource])
        response = self.request(request, IncrementalAlterConfigsResponse)
        check(response.responses[0].error_code, f"configs of {name or 'all brokers'}")

    def create_automatically(self, topic: str) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
        self.request(request, MetadataResponse)

    def produce(self, topic: str) -> int:
        """Produce a record of 100 bytes to partition 0 with acks=all; return the error code."""
        self._send_batch(topic, build_batch([(int(time.time() * 1000), None, bytes(100), ())]))
        return self._produced()

    def produce_batches(self, topic: str, batches: Iterable[bytearray], in_flight: int) -> None:
        """Produce batches to partition 0, with at most `in_flight` requests without a response."""
        waiting = 0
        for batch in batches:
            self._send_batch(topic, batch)
            waiting += 1
            if waiting == in_flight:
                check(self._produced(), topic)
                waiting -= 1
        for _ in range(waiting):
            check(self._produced(), topic)

    def _send_batch(self, topic: str, batch: bytearray) -> None:
        topics = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])]
        request = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=topics)
        self.send(request, PRODUCE_VERSION)

    def _produced(self) -> int:
        return self.receive().decode(ProduceResponse).responses[0].partition_responses[0].error_code

    def latest(self, topic: str) -> int:
        """Return the high watermark of partition 0."""
        row = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[row])])
        partition = self.request(request, ListOffsetsResponse).topics[0].partitions[0]
        check(partition.error_code, topic)
        return partition.offset

    def fetch(self, topic: str, offset: int, max_bytes: int = 1 << 20) -> int:
        """Fetch from partition 0; return the offset after the last record, or `offset` at the end."""
        row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
        topics = [FetchTopic(topic=topic, partitions=[row])]
        request = FetchRequest(max_wait_ms=100, min_bytes=1, max_bytes=max_bytes, topics=topics)
        data = self.request(request, FetchResponse, FETCH_VERSION).responses[0].partitions[0]
        return max((header.next_offset for _, header in iter_headers(data.records or b"")), default=offset)


def check(code: int, what: str) -> None:
    if code:
        raise SystemExit(f"{what}: {error_name(code)}")


def first_acknowledged(peer: Peer, topic: str, deadline_s: float = 300) -> float:
    """Start the server; return the seconds until the first acknowledged record."""
    begin = time.perf_counter()
    peer.start()
    while time.perf_counter() - begin < deadline_s:
        try:
            with closing(Connection(peer.port)) as connection:
                while connection.produce(topic):
                    connection.create_automatically(topic)
                    time.sleep(0.002)
                return time.perf_counter() - begin
        except OSError:
            time.sleep(0.005)
    raise SystemExit(f"{peer.name} acknowledged nothing in {deadline_s} s")
