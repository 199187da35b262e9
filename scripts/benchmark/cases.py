"""The cases of the benchmark. Each measures one figure of one server."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from scripts.benchmark.clients import (
    Connection,
    consume,
    create_topic,
    first_acknowledged,
    latency,
    produce,
    transactions,
    with_warm_up,
)
from scripts.benchmark.peers import Kafka, Kbroker, Peer


class Measured(NamedTuple):
    """One figure of one server in one round.

    `processor_time`: what the server used meanwhile, in `processor_unit`; None if the case does not measure it.
    """

    value: float
    processor_time: float | None = None
    processor_unit: str = ""


class Work(NamedTuple):
    """The work of a run. A figure in `unit` is the server's processor time in seconds, divided by `amount`."""

    amount: float
    unit: str


def per_record(records: int) -> Work:
    return Work(records / 1e6, "us/record")


def per_transaction(transactions: int) -> Work:
    return Work(transactions / 1e6, "us/txn")


def per_megabyte(megabytes: float) -> Work:
    return Work(megabytes / 1e3, "ms/MB")


# The whole run. It has the same length and the same load with each server.
RUN = Work(1, "s")


class Meter:
    """Measures the processor time of a server from its creation on."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._before = peer.processor_time().total

    def figures(self, work: Work, *values: float) -> tuple[Measured, ...]:
        """Return the figures of a run that ends now."""
        used = (self._peer.processor_time().total - self._before) / work.amount
        return tuple(Measured(value, used, work.unit) for value in values)

    def figure(self, work: Work, value: float) -> Measured:
        """Return the only figure of a run that ends now."""
        return self.figures(work, value)[0]


LINGER = ("linger.ms=5", "batch.size=65536")


@dataclass
class Case:
    """`bound`: the ratio kbroker / Apache Kafka must be at least (better: "more") or at most ("less") this."""

    name: str
    unit: str
    better: str
    bound: float
    measure: Callable[[Peer], Measured]
    prepare: Callable[[Peer], None] = field(default=lambda peer: None)
    # The maximum number of rounds, for cases that take minutes.
    rounds: int = 99


_names = iter(range(10**9))


def fresh_topic(peer: Peer, partitions: int, **configs: str) -> str:
    topic = f"bench-{os.getpid()}-{next(_names)}"
    create_topic(peer, topic, partitions, **configs)
    return topic


def producing(partitions: int, records: int, size: int, *properties: str) -> Callable[[Peer], Measured]:
    def measure(peer: Peer) -> Measured:
        topic, meter = fresh_topic(peer, partitions), Meter(peer)
        rate = produce(peer, topic, records, size, *properties)
        return meter.figure(per_record(with_warm_up(records)), rate)

    return measure


class Consuming:
    """Consumes a topic that `fill` writes once per server."""

    def __init__(
        self, partitions: int, records: int, size: int, fill: Callable[[Peer, str], object], *properties: str
    ) -> None:
        """`records` of `size` bytes are read, with these properties of the consumer."""
        self.partitions = partitions
        self.records = records
        self.size = size
        self.fill = fill
        self.properties = properties
        self.topics: dict[Peer, str] = {}

    def prepare(self, peer: Peer) -> None:
        self.topics[peer] = fresh_topic(peer, self.partitions)
        self.fill(peer, self.topics[peer])

    def measure(self, peer: Peer) -> Measured:
        meter = Meter(peer)
        rate = consume(peer, self.topics[peer], self.records, *self.properties)
        return meter.figure(per_megabyte(self.records * self.size / 1e6), rate)


class Shared:
    """Several figures of one run; each belongs to a case of its own."""

    def __init__(self) -> None:
        self.unread: dict[tuple[Peer, int], list[Measured]] = {}

    def run(self, peer: Peer) -> tuple[Measured, ...]:
        raise NotImplementedError

    def figure(self, which: int) -> Callable[[Peer], Measured]:
        def measure(peer: Peer) -> Measured:
            mine = self.unread.setdefault((peer, which), [])
            if not mine:
                for number, value in enumerate(self.run(peer)):
                    self.unread.setdefault((peer, number), []).append(value)
            return mine.pop(0)

        return measure


class LatencyOf(Shared):
    """Latency: figure 0 is p50, figure 1 is p99."""

    def __init__(self, mode: str, records: int) -> None:
        super().__init__()
        self.mode = mode
        self.records = records
        self.topics: dict[Peer, str] = {}

    def prepare(self, peer: Peer) -> None:
        if peer not in self.topics:
            self.topics[peer] = fresh_topic(peer, 1)

    def run(self, peer: Peer) -> tuple[Measured, ...]:
        meter = Meter(peer)
        return meter.figures(self.work(), *latency(peer, self.topics[peer], self.mode, self.records))

    def work(self) -> Work:
        # With the warm-up of Latency.java.
        return per_record(self.records + max(self.records // 5, 500))


@contextmanager
def idle_connections(peer: Peer, count: int) -> Iterator[None]:
    held = [socket.create_connection(("127.0.0.1", peer.port), 5) for _ in range(count)]
    try:
        yield
    finally:
        for connection in held:
            connection.close()


class BesideIdle(LatencyOf):
    """Latency while 500 connections are idle."""

    def run(self, peer: Peer) -> tuple[Measured, ...]:
        with idle_connections(peer, 500):
            return super().run(peer)


class BesideColdReader(LatencyOf):
    """Latency while another client reads 100 MiB/s of old data that is not in the page cache.

    The rate is the same for every server, so that a faster one does not have more work.
    """

    OLD_RECORDS = 600_000
    BYTES_PER_S = 100 << 20

    def __init__(self, mode: str, records: int) -> None:
        super().__init__(mode, records)
        self.old: dict[Peer, str] = {}

    def prepare(self, peer: Peer) -> None:
        super().prepare(peer)
        if peer not in self.old:
            self.old[peer] = fresh_topic(peer, 1)
            produce(peer, self.old[peer], self.OLD_RECORDS, 1000, *LINGER)

    def work(self) -> Work:
        return RUN

    def run(self, peer: Peer) -> tuple[Measured, ...]:
        os.sync()
        self.evict(peer)
        over = threading.Event()
        reader = threading.Thread(target=self.read_until, args=(peer, over))
        reader.start()
        try:
            return super().run(peer)
        finally:
            over.set()
            reader.join()

    def read_until(self, peer: Peer, over: threading.Event) -> None:
        reader = Connection(peer.port)
        offset = 0
        due = time.monotonic()
        while not over.wait(max(due - time.monotonic(), 0)):
            following = reader.fetch(self.old[peer], offset)
            due = max(due, time.monotonic() - 0.1) + (following - offset) * 1000 / self.BYTES_PER_S
            if following == offset:
                self.evict(peer)
                following = 0
            offset = following
        reader.close()

    def evict(self, peer: Peer) -> None:
        """Drop the old topic's pages, and only those, from the page cache."""
        for segment in peer.directory.glob(f"data/**/{self.old[peer]}-0/*.log"):
            fd = os.open(segment, os.O_RDONLY)
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def first_acknowledged_by(peer: Peer, topic: str) -> Measured:
    """Start the server; return the seconds until the first acknowledged record."""
    return Measured(first_acknowledged(peer, topic), peer.processor_time().total, RUN.unit)


def starting(make: Callable[[Peer], Peer]) -> Callable[[Peer], Measured]:
    def measure(peer: Peer) -> Measured:
        fresh = make(peer)
        fresh.prepare()
        try:
            return first_acknowledged_by(fresh, "first")
        finally:
            fresh.remove()

    return measure


def another(peer: Peer) -> Peer:
    """Return a second server of the same kind with its own directory."""
    directory = peer.directory.parent / f"{peer.directory.name}-{next(_names)}"
    return Kafka(directory, peer.heap) if isinstance(peer, Kafka) else Kbroker(directory)


class Restarting:
    """Start after kill -9 with many partitions and much data: seconds to the first acknowledged record."""

    def __init__(self, partitions: int, gigabytes: float) -> None:
        self.partitions = partitions
        self.records = int(gigabytes * 2**30 / 1000)
        self.loaded: dict[Peer, Peer] = {}

    def prepare(self, peer: Peer) -> None:
        loaded = self.loaded[peer] = another(peer)
        loaded.prepare()
        loaded.start()
        create_topic(loaded, "big", self.partitions)
        produce(loaded, "big", self.records, 1000, "batch.size=65536", "linger.ms=20", "buffer.memory=268435456")

    def measure(self, peer: Peer) -> Measured:
        loaded = self.loaded[peer]
        # In flight when it is killed: the tail has to be looked at.
        produce(loaded, "big", 2000, 1000, *LINGER)
        loaded.kill()
        return first_acknowledged_by(loaded, "big")

    def close(self) -> None:
        for loaded in self.loaded.values():
            loaded.remove()


def resident(peer: Peer) -> Measured:
    return Measured(peer.resident_mib())


def flooded(seconds: float = 60) -> Callable[[Peer], Measured]:
    """Resident memory after eight unthrottled producers have sent for `seconds`."""
    records = 400_000

    def measure(peer: Peer) -> Measured:
        topic, meter = fresh_topic(peer, 6), Meter(peer)
        end = time.monotonic() + seconds
        rates: list[float] = []

        def flood() -> None:
            while time.monotonic() < end:
                rates.append(produce(peer, topic, records, 1000, *LINGER, "max.block.ms=120000"))

        threads = [threading.Thread(target=flood) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return meter.figure(per_record(len(rates) * with_warm_up(records)), peer.resident_mib())

    return measure


def all_cases() -> list[Case]:
    records = 12_000_000
    consuming = Consuming(6, records, 100, lambda peer, topic: produce(peer, topic, records, 100, *LINGER))
    quiet, end_to_end = LatencyOf("produce", 8_000), LatencyOf("end-to-end", 4_000)
    idle, cold = BesideIdle("produce", 8_000), BesideColdReader("produce", 8_000)
    restarting = Restarting(1000, 2.0)
    more, less = "more", "less"
    return [
        Case("produce 100 B, 1 partition, 64 KiB batches", "records/s", more, 1.5,
             producing(1, 1_500_000, 100, *LINGER)),
        Case("produce 100 B lz4, 6 partitions", "records/s", more, 1.2,
             producing(6, 1_500_000, 100, *LINGER, "compression.type=lz4")),
        Case("produce 1 KiB, default batches, 6 partitions", "records/s", more, 1.2,
             producing(6, 300_000, 1024)),
        Case("produce unbatched, 6 partitions", "records/s", more, 1.0,
             producing(6, 80_000, 100, "batch.size=1", "linger.ms=0")),
        Case("resident memory after the produce cases", "MiB", less, 0.15, resident),
        Case("consume 100 B, 6 partitions", "records/s", more, 1.0, consuming.measure, consuming.prepare),
        Case("produce latency at 2,000/s, p50", "us", less, 1.1, quiet.figure(0), quiet.prepare),
        Case("produce latency at 2,000/s, p99", "us", less, 1.1, quiet.figure(1), quiet.prepare),
        Case("end to end, p50", "us", less, 1.1, end_to_end.figure(0), end_to_end.prepare),
        Case("end to end, p99", "us", less, 1.1, end_to_end.figure(1), end_to_end.prepare),
        Case("p99 while 500 connections idle", "us", less, 1.0, idle.figure(1), idle.prepare),
        Case("p99 with a cold reader of 100 MiB/s", "us", less, 1.0, cold.figure(1), cold.prepare),
        Case("start to first acknowledged record", "s", less, 0.25, starting(another)),
        Case("kill -9 restart, 1,000 partitions, 2 GB", "s", less, 1.0, restarting.measure, restarting.prepare),
        Case("resident memory after 60 s of overload", "MiB", less, 0.15, flooded(), rounds=1),
    ]  # fmt: skip


# Transactions: how many of 100 records per second, and the speed of read_committed with aborted ones.

PARTITIONS = 6
RECORDS = 100
# Transactions.java
RECORD_BYTES = 100
# Read with isolation.level=read_committed: every tenth transaction was aborted.
WRITTEN, RECORDS_WRITTEN, ABORT_EVERY = 8_000, 1_000, 10


def ending(producers: int, count: int) -> Callable[[Peer], Measured]:
    def measure(peer: Peer) -> Measured:
        topic, meter = fresh_topic(peer, PARTITIONS), Meter(peer)
        rate = transactions(peer, topic, producers, count, RECORDS)
        # With the warm-up of Transactions.java.
        each = count // producers
        return meter.figure(per_transaction(producers * (each + each // 5)), rate)

    return measure


def transaction_cases() -> list[Case]:
    # Eight producers write the topic at once.
    reading = Consuming(
        PARTITIONS,
        (WRITTEN - WRITTEN // ABORT_EVERY) * RECORDS_WRITTEN,
        RECORD_BYTES,
        lambda peer, topic: transactions(peer, topic, 8, WRITTEN, RECORDS_WRITTEN, ABORT_EVERY),
        "isolation.level=read_committed",
    )
    more = "more"
    return [
        Case("transactions of 100 records, 1 producer", "txn/s", more, 1.0, ending(1, 3_000)),
        Case("transactions of 100 records, 8 producers", "txn/s", more, 1.0, ending(8, 8_000)),
        Case("consume read_committed, 10% aborted", "records/s", more, 1.0, reading.measure, reading.prepare),
    ]
