"""Move replicas between three brokers of kbroker, and between three nodes of Apache Kafka 4.4.0: first as fast as
possible, then with a throttle while clients produce and consume.

A topic with replication factor 2 has its leaders and followers spread over three brokers. The first move takes the
follower of each partition to the broker that has no replica of it, so each broker sends and receives a third of the
bytes. The second one takes it back. Leaders do not change.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import IO, NamedTuple

from scripts.benchmark.clients import PROGRAMS, produce
from scripts.benchmark.cluster.admin import MoveAdmin, balanced, start, wait_until
from scripts.benchmark.cluster.clusters import BROKERS, Cluster, KafkaCluster, KbrokerCluster, measure_clusters
from scripts.benchmark.frame import (
    COMPARISON,
    add_options,
    comparison,
    footer,
    median_of,
    parser,
    publish,
    rounds_text,
    scratch_directory,
    today,
    write_json,
)
from scripts.benchmark.peers import java

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
    start(cluster)
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


END_S = 60


class ForegroundLatency(NamedTuple):
    """Percentiles of one window, in milliseconds: until the acknowledgement (acks=all), and from send to poll."""

    p50: float
    p99: float
    end_to_end_p50: float
    end_to_end_p99: float


class Foreground:
    """A producer at a steady rate and a consumer, in one process, with warm clients when this is created."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        """`rate`: records of 100 bytes per second."""
        command = java(str(PROGRAMS / "Foreground.java"), bootstrap, topic, str(rate))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()

    @property
    def _commands(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the clients ended with {self._process.wait(END_S)}")
        return line

    def begin(self) -> None:
        """Begin a window."""
        self._commands.write("begin\n")
        self._commands.flush()

    def end(self) -> ForegroundLatency:
        """Return the latencies of the window."""
        self._commands.write("end\n")
        self._commands.flush()
        return ForegroundLatency(*(int(micros) / 1000 for micros in self._read().split()))

    def close(self) -> None:
        self._commands.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Row(NamedTuple):
    """`figure`: its name in a round's figures. `bound`: of the ratio, or of kbroker's own figure."""

    title: str
    figure: str
    bound: str = ""


def rows(size: str, throttle: str, rate: int) -> list[Row]:
    """Return the table's rows. `size` and `throttle`: with their units."""
    move, during = f"move {size}", f"during a move at {throttle}"
    clients = f"{rate:,} records/s"
    return [
        Row(f"{move}, s", "move s", "≤ 1.00"),
        Row(f"{move}, processor time, user s", "move user s"),
        Row(f"{move}, processor time, system s", "move system s"),
        Row(f"{move}, largest VmRSS of all processes, MiB", "move MiB"),
        Row(f"{move} at {throttle}, s", "throttled s"),
        Row(f"produce at {clients}, p50 ms", "quiet p50"),
        Row(f"produce at {clients}, p50 ms {during}", "moving p50"),
        Row(f"produce at {clients}, p99 ms", "quiet p99"),
        Row(f"produce at {clients}, p99 ms {during}", "moving p99"),
        Row(f"produce at {clients}, p99 {during} / alone", "p99 ratio", "kbroker ≤ 1.50"),
        Row(f"send to poll at {clients}, p99 ms", "quiet end_to_end_p99"),
        Row(f"send to poll at {clients}, p99 ms {during}", "moving end_to_end_p99"),
        Row(f"send to poll at {clients}, p99 {during} / alone", "end_to_end_p99 ratio", "kbroker ≤ 1.50"),
    ]


def lines_of(
    table: Sequence[Row], ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]
) -> list[str]:
    """`ours`, `theirs`: the figures of each round, by name; `theirs` may be empty."""
    return [
        comparison(row.title, median_of(ours, row.figure), median_of(theirs, row.figure), row.bound) for row in table
    ]


def main() -> int:
    options = parser("--moves", __doc__, 1)
    add_options(options, only=False, kafka=True)
    add = options.add_argument
    add("--gigabytes", type=float, default=2.0, help="the size of what is moved; default 2")
    add("--throttle", type=float, default=20.0, metavar="MB/S", help="of each broker, each way; default 20")
    add("--rate", type=int, default=2000, help="records/s of the clients; default 2000")
    add("--quiet", type=float, default=20.0, metavar="S", help="seconds in which the clients are alone; default 20")
    args = options.parse_args()
    settings = Settings(int(args.gigabytes * 10**9), int(args.throttle * 10**6), args.rate, args.quiet)
    with scratch_directory() as base:
        figures = measure_clusters(base, args.rounds, args.no_kafka, lambda cluster: measure_round(cluster, settings))
    write_json(args, figures=figures)
    table = rows(f"{args.gigabytes:g} GB", f"{args.throttle:g} MB/s", args.rate)
    lines = lines_of(table, figures[KbrokerCluster.name], figures.get(KafkaCluster.name, []))
    print(footer(rounds_text(args.rounds)), end="\n\n")
    publish(args, "moves", "--moves", COMPARISON, lines, f"{today()}, {rounds_text(args.rounds)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
