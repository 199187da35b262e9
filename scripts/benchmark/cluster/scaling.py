"""Two brokers on two cores against one: responses/s of `kbroker start --brokers 2` and of `--brokers 1`.

The topics have one replica. Two clients of `./scripts/bench --capacity` run at the same time, one for each broker, or
both for the only one. They share the cores with the brokers, so the ratio can be at most
2 * broker / (broker + client), with the processor time of each per response. Therefore they have many requests in
flight, which they send with few system calls.
"""

import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from protocol.apis import ApiKey
from protocol.messages.k00_produce import PartitionProduceData, ProduceRequest, TopicProduceData
from scripts.benchmark.capacity import requests
from scripts.benchmark.capacity.cases import (
    PARTITIONS,
    Case,
    fetching,
    idempotent,
    listing_offsets,
    metadata,
    producing,
    repeating,
)
from scripts.benchmark.capacity.client import Load, connected
from scripts.benchmark.capacity.server import Server
from scripts.benchmark.cluster.admin import start
from scripts.benchmark.cluster.clusters import KbrokerCluster
from scripts.benchmark.frame import is_chosen

CLIENTS = 2
BROKERS = 2
IN_FLIGHT = 20
REQUIRED_RATIO = 1.6
MANY_PARTITIONS = 100


@contextmanager
def producing_to_all(server: Server) -> Iterator[Load]:
    """Each request has one record for each partition of a topic, as a producer sends it for several partitions."""
    version = server.version(ApiKey.PRODUCE)
    with server.topic(PARTITIONS) as topic:
        data = [PartitionProduceData(index=index, records=requests.batch(1, 100)) for index in range(PARTITIONS)]
        topics = [TopicProduceData(name=topic[0], topic_id=topic[1], partition_data=data)]
        frame = requests.frame(ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=topics), version)
        yield Load([[frame]] * 8, 5, requests.produce_error_at(topic, version))


@contextmanager
def listing_many_offsets(server: Server) -> Iterator[Load]:
    """List the latest offsets of a topic with many partitions."""
    with server.topic(MANY_PARTITIONS) as (name, _):
        request = server.offsets_request(name, range(MANY_PARTITIONS))
        with repeating(server, [request], lambda response: response.topics[0].partitions[0], 8, 5) as load:
            yield load


def scaling_cases() -> list[Case]:
    return [
        Case("list offsets of 100 partitions", listing_many_offsets),
        Case("produce 1 record to each of 6 partitions", producing_to_all),
        Case("idempotent produce 16 KiB", idempotent(15, 1024)),
        Case("list offsets", listing_offsets),
        Case("produce 1 record", producing(1, 100, connections=8)),
        Case("produce 16 KiB of 1 KiB", producing(15, 1024)),
        Case("fetch 8 KiB, batches of 4 KiB", fetching(8 << 10, 4, 990, response_bytes=8_000)),
        Case("metadata", metadata),
    ]


class ScalingRound:
    """A cluster of `brokers` with two clients."""

    def __init__(self, directory: Path, brokers: int) -> None:
        self._cluster = KbrokerCluster(directory, brokers)
        start(self._cluster)
        ports = self._cluster.ports()
        nodes = [number % brokers for number in range(CLIENTS)]
        self._servers = [
            Server(self._cluster, f"{brokers} brokers", port=ports[node], node_id=node + 1) for node in nodes
        ]

    def measure(self, case: Case, seconds: float) -> dict[str, float]:
        """Return the responses/s of all brokers, and the processor time of a response in the clients and brokers."""
        with ExitStack() as stack, ThreadPoolExecutor(CLIENTS) as threads:
            loads = [
                replace(stack.enter_context(case.prepare(server)), in_flight=IN_FLIGHT) for server in self._servers
            ]
            clients = [
                stack.enter_context(connected(server.port, load, seconds, name=case.name))
                for server, load in zip(self._servers, loads, strict=True)
            ]
            before = self._cluster.processor_time().total
            runs = list(threads.map(lambda client: client.run(), clients))
            used = self._cluster.processor_time().total - before
        responses = sum(run.responses for run in runs)
        return {
            "responses/s": sum(run.responses / run.seconds for run in runs),
            "broker us": 1e6 * used / responses,
            "client us": sum(run.client_us for run in runs) / responses,
        }

    def remove(self) -> None:
        self._cluster.kill()
        self._cluster.remove()


def measure_scaling(base: Path, rounds: int, seconds: float, only: Sequence[str]) -> list[str]:
    """Return the rows of the table of two brokers against one."""
    cases = [case for case in scaling_cases() if is_chosen(case.name, only)]
    if not cases:
        return []
    figures: dict[str, dict[int, list[dict[str, float]]]] = {case.name: {1: [], BROKERS: []} for case in cases}
    for number in range(rounds):
        for brokers in (1, BROKERS) if number % 2 else (BROKERS, 1):
            clusters = ScalingRound(base / f"scaling-{number}-{brokers}", brokers)
            try:
                for case in cases:
                    clusters.measure(case, seconds / 4)  # warms up
                    figures[case.name][brokers].append(clusters.measure(case, seconds))
                    print(f"{case.name}, {brokers}: {figures[case.name][brokers][-1]}", file=sys.stderr, flush=True)
            finally:
                clusters.remove()
    return [scaling_row(case.name, figures[case.name]) for case in cases]


SCALING_HEADING = (
    "| case | responses/s of 1 broker | of 2 brokers | ratio | processor time per response, broker + client, us |\n"
    "|---|---|---|---|---|"
)


def scaling_row(name: str, figures: dict[int, list[dict[str, float]]]) -> str:
    medians = {
        brokers: {unit: statistics.median(each[unit] for each in of) for unit in of[0]}
        for brokers, of in figures.items()
    }
    one, two = medians[1], medians[BROKERS]
    return (
        f"| {name} | {one['responses/s']:,.0f} | {two['responses/s']:,.0f} "
        f"| **{two['responses/s'] / one['responses/s']:.2f}** (≥ {REQUIRED_RATIO}) "
        f"| {one['broker us']:.1f} + {one['client us']:.1f} |"
    )
