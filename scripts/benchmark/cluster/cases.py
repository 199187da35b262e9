"""The list of cases, with the ratios to Apache Kafka that the project requires."""

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from kafka import KafkaProducer

from scripts.benchmark.cases import Meter, per_record
from scripts.benchmark.clients import latency, produce, with_warm_up
from scripts.benchmark.cluster.admin import NO_LEADER, Admin, balanced, wait_until
from scripts.benchmark.cluster.clusters import BROKERS, SESSION_MS, Cluster

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


# How long clients are without a leader when a broker ends or hangs.

PARTITIONS = 1_000
LED = 500
# Time for a producer before and after the pause.
STEADY_S = 2


class PacedProducer:
    """An idempotent producer with acks=all, which sends a record every 5 ms and knows when each was acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged_s = [time.monotonic()]
        self._topic = topic
        self._stopping = threading.Event()
        self._producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","), acks="all", enable_idempotence=True, linger_ms=0,
            retry_backoff_ms=20, reconnect_backoff_ms=20, reconnect_backoff_max_ms=100,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        while not self._stopping.wait(0.005):
            future = self._producer.send(self._topic, b"x" * 100)
            future.add_callback(lambda _: self.acknowledged_s.append(time.monotonic()))

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()
        self._producer.flush(60)
        self._producer.close()


def longest_gap(cluster: Cluster, number: signal.Signals) -> dict[str, float]:
    """Send a signal to the leader of a partition, and return the longest time without an acknowledgement.

    A stopped process (SIGSTOP) continues after the measurement.
    """
    admin = Admin(cluster)
    leader = other_than(admin.controller())
    others = [node_id for node_id in range(1, BROKERS + 1) if node_id != leader]
    topic = admin.new_topic([[leader, *others]])
    producer = PacedProducer(cluster.bootstrap, topic)
    time.sleep(STEADY_S)
    before = len(producer.acknowledged_s)
    pid = cluster.broker_pid(leader)
    os.kill(pid, number)
    wait_until(lambda: has_other_leader(admin, others[0], topic, leader), f"another leader than broker {leader}")
    moved_s = time.monotonic()
    wait_until(lambda: producer.acknowledged_s[-1] > moved_s, "a record is acknowledged by the new leader")
    time.sleep(STEADY_S)
    producer.close()
    admin.close()
    if number == signal.SIGSTOP:
        os.kill(pid, signal.SIGCONT)
    times = producer.acknowledged_s[before - 1 :]
    return {"s": max(later - earlier for earlier, later in pairwise(times))}


def has_other_leader(admin: Admin, asked: int, topic: str, former: int) -> bool:
    return all(leader not in (former, NO_LEADER) for leader in admin.leaders(asked, topic).values())


def other_than(controller: int) -> int:
    """Return a broker that is not the controller, so that the controller's own failover is not measured."""
    return controller % BROKERS + 1


def fail_over(cluster: Cluster) -> dict[str, float]:
    """Kill a broker that leads 500 of 1,000 partitions; return when the last of them has a leader in Metadata.

    The time of the first partition is mostly the session timeout. Metadata is that of another broker.
    """
    admin = Admin(cluster)
    victim = other_than(admin.controller())
    asked, third = (node_id for node_id in range(1, BROKERS + 1) if node_id != victim)
    assignments = [[victim, asked, third]] * LED + balanced_over(asked, third, victim)
    topic = admin.new_topic(assignments)
    os.kill(cluster.broker_pid(victim), signal.SIGKILL)
    killed_s = time.monotonic()
    first_s = 0.0
    while True:
        leaders = list(admin.leaders(asked, topic).values())[:LED]
        now = time.monotonic() - killed_s
        moved = sum(leader not in (victim, NO_LEADER) for leader in leaders)
        if moved and not first_s:
            first_s = now
        if moved == LED:
            break
        if now > 60:
            raise SystemExit(f"{LED - moved} partitions have no new leader")
        time.sleep(0.02)
    admin.close()
    return {"s until the first partition": first_s, "s until the last partition": now}


def balanced_over(first: int, second: int, victim: int) -> list[list[int]]:
    """Return the assignments of the partitions that the victim does not lead."""
    rest = PARTITIONS - LED
    return [[first, second, victim] if index % 2 else [second, first, victim] for index in range(rest)]


def create(cluster: Cluster) -> dict[str, float]:
    """Create a topic of 1,000 partitions; return when the response comes, and when all leaders respond."""
    admin = Admin(cluster)
    assignments = balanced(PARTITIONS)
    begin = time.monotonic()
    topic = admin.create(assignments)
    created_s = time.monotonic() - begin
    admin.wait_until_usable(topic, assignments)
    usable_s = time.monotonic() - begin
    admin.close()
    return {"s until the response": created_s, "s until usable": usable_s}
