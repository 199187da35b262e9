"""One round with one cluster: the move without a throttle, the clients alone, and the move with a throttle.

A topic with replication factor 2 has its leaders and followers spread over three brokers. The first move takes the
follower of each partition to the broker that has no replica of it, so each broker sends and receives a third of the
bytes. The second one takes it back. Leaders do not change.
"""

import os
import time
from typing import NamedTuple

from scripts.benchmark.clients import produce
from scripts.benchmark.cluster.admin import balanced, wait_until
from scripts.benchmark.cluster.clusters import BROKERS, Cluster
from scripts.benchmark.cluster.moves.foreground import Foreground
from scripts.benchmark.cluster.moves.move_admin import MoveAdmin

PARTITIONS = 12
FOREGROUND_PARTITIONS = 6
RECORD_BYTES = 1024
# A full batch of the producer that fills the topic.
BATCH_BYTES = 128 * 1024
# Soon enough for the files to be gone before the next measurement.
DELETE_DELAY_MS = 1_000
# Memory is read at these intervals: it takes longer than a look at the moves.
MEMORY_S = 0.5

Figures = dict[str, float]


class Settings(NamedTuple):
    """`size`: bytes to move. `throttle`: bytes/s of each broker. `rate`: foreground records/s. `quiet_s`: the time that
    the clients are measured alone."""

    size: int
    throttle: int
    rate: int
    quiet_s: float


def before_move(partitions: int) -> list[list[int]]:
    """Return the assignments: each broker leads a third of the partitions, and the next one follows."""
    return [[index % BROKERS + 1, (index + 1) % BROKERS + 1] for index in range(partitions)]


def after_move(partitions: int) -> list[list[int]]:
    """Return the assignments with the followers on the brokers that had no replica."""
    return [[index % BROKERS + 1, (index + 2) % BROKERS + 1] for index in range(partitions)]


class MemoryPeak:
    """The largest resident memory of a cluster, in MiB."""

    def __init__(self, cluster: Cluster) -> None:
        self.mib = cluster.resident_mib()
        self._cluster = cluster
        self._next_s = time.monotonic()

    def sample(self) -> None:
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + MEMORY_S
            self.mib = max(self.mib, self._cluster.resident_mib())


def measure_round(cluster: Cluster, settings: Settings) -> Figures:
    """Return the figures of one round, by the names of the table's rows (table.py)."""
    admin = MoveAdmin(cluster)
    try:
        admin.set_delete_delay(DELETE_DELAY_MS)
        topic = admin.new_topic(before_move(PARTITIONS))
        records = settings.size // RECORD_BYTES
        produce(cluster, topic, records * 5 // 6, RECORD_BYTES, f"batch.size={BATCH_BYTES}", "linger.ms=5")
        figures = move_unthrottled(cluster, admin, topic)
        wait_until_deleted(cluster, topic)
        return figures | move_throttled(cluster, admin, topic, settings)
    finally:
        admin.close()


def move_unthrottled(cluster: Cluster, admin: MoveAdmin, topic: str) -> Figures:
    os.sync()
    memory = MemoryPeak(cluster)
    before = cluster.processor_time()
    seconds = admin.move(topic, after_move(PARTITIONS), memory.sample)
    after = cluster.processor_time()
    return {
        "move s": seconds,
        "move user s": after.user - before.user,
        "move system s": after.system - before.system,
        "move MiB": memory.mib,
    }


def move_throttled(cluster: Cluster, admin: MoveAdmin, topic: str, settings: Settings) -> Figures:
    """Measure the clients alone, and then during the whole of a throttled move."""
    clients_topic = admin.new_topic(balanced(FOREGROUND_PARTITIONS))
    os.sync()
    foreground = Foreground(cluster.bootstrap, clients_topic, settings.rate)
    try:
        foreground.begin()
        time.sleep(settings.quiet_s)
        quiet = foreground.end()
        admin.throttle(topic, settings.throttle)
        foreground.begin()
        seconds = admin.move(topic, before_move(PARTITIONS), lambda: None)
        moving = foreground.end()
        admin.remove_throttle(topic)
    finally:
        foreground.close()
    return {
        "throttled s": seconds,
        **{f"quiet {name}": value for name, value in quiet._asdict().items()},
        **{f"moving {name}": value for name, value in moving._asdict().items()},
        "p99 ratio": moving.p99 / quiet.p99,
        "end_to_end_p99 ratio": moving.end_to_end_p99 / quiet.end_to_end_p99,
    }


def wait_until_deleted(cluster: Cluster, topic: str) -> None:
    """Wait until the files of the replicas that were moved away are gone, so that removing them is not measured."""
    # A directory for each broker and log directory.
    pattern = f"*/*/{topic}-*"
    wait_until(lambda: len(list(cluster.directory.glob(pattern))) == 2 * PARTITIONS, "moved replicas are deleted")
