"""The list of cases, with the ratios to Apache Kafka that the project requires."""

import signal
from collections.abc import Callable
from dataclasses import dataclass

from scripts.benchmark.clients import latency, produce, with_warm_up
from scripts.benchmark.cluster.admin import Admin, balanced
from scripts.benchmark.cluster.clusters import SESSION_MS, Cluster
from scripts.benchmark.cluster.failover import create, fail_over, longest_gap
from scripts.benchmark.metering import Meter, per_record

TOPIC_PARTITIONS = 6


@dataclass(frozen=True)
class Case:
    """`bounds`: for figures that have one, the sign and the required ratio, kbroker / Apache Kafka.

    `ends_broker`: the cluster is restarted afterwards.
    """

    name: str
    measure: Callable[[Cluster], dict[str, float]]
    bounds: dict[str, tuple[str, float]]
    ends_broker: bool = False


def new_topic(cluster: Cluster) -> str:
    admin = Admin(cluster)
    topic = admin.new_topic(balanced(TOPIC_PARTITIONS))
    admin.close()
    return topic


def throughput(cluster: Cluster, records: int, size: int, *properties: str) -> dict[str, float]:
    topic = new_topic(cluster)
    meter = Meter(cluster)
    rate = produce(cluster, topic, records, size, *properties)
    used = meter.figure(per_record(with_warm_up(records)), rate)
    return {"records/s": rate, "processor us/record": used.processor_time or 0.0}


def paced(cluster: Cluster, records: int) -> dict[str, float]:
    p50, p99 = latency(cluster, new_topic(cluster), "produce", records)
    return {"p50 ms": p50 / 1000, "p99 ms": p99 / 1000}


def memory(cluster: Cluster) -> dict[str, float]:
    return {"MiB, VmRSS": cluster.resident_mib(), "MiB, Pss": cluster.proportional_mib()}


def all_cases(scale: float) -> list[Case]:
    """`scale` multiplies the numbers of records."""
    throughput_bounds = {"processor us/record": ("≤", 0.5)}
    session = f"session timeout {SESSION_MS // 1000} s"
    return [
        Case("produce 1 KiB, 6 partitions, default batches",
             lambda cluster: throughput(cluster, int(100_000 * scale), 1024),
             {"records/s": ("≥", 1.5), **throughput_bounds}),
        Case("produce 100 B, 6 partitions, 64 KiB batches",
             lambda cluster: throughput(cluster, int(1_000_000 * scale), 100, "batch.size=65536", "linger.ms=5"),
             {"records/s": ("≥", 1.3), **throughput_bounds}),
        Case("produce latency at 2,000/s", lambda cluster: paced(cluster, int(20_000 * scale)),
             {"p50 ms": ("≤", 0.8), "p99 ms": ("≤", 0.8)}),
        Case("memory of all processes", memory, {"MiB, VmRSS": ("≤", 0.08)}),
        Case("create a topic of 1,000 partitions", create,
             {"s until the response": ("≤", 1.0), "s until usable": ("≤", 1.0)}),
        Case(f"gap after kill -9 of a leader, {session}", lambda cluster: longest_gap(cluster, signal.SIGKILL),
             {"s": ("≤", 1.0)}, ends_broker=True),
        Case(f"gap after SIGSTOP of a leader, {session}", lambda cluster: longest_gap(cluster, signal.SIGSTOP),
             {"s": ("≤", 1.0)}, ends_broker=True),
        Case("gap after a clean stop of a leader", lambda cluster: longest_gap(cluster, signal.SIGTERM),
             {}, ends_broker=True),
        Case(f"kill -9 of the leader of 500 of 1,000 partitions, {session}", fail_over,
             {"s until the last partition": ("≤", 1.0)}, ends_broker=True),
    ]  # fmt: skip
