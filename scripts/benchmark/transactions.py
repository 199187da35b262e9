"""Transactions: how many of 100 records per second, and the speed of read_committed with aborted ones."""

from collections.abc import Callable

from scripts.benchmark.cases import Case, fresh_topic
from scripts.benchmark.clients import consume, transactions
from scripts.benchmark.metering import Measured, Meter, per_megabyte, per_transaction
from scripts.benchmark.peers import Peer

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


class ReadingCommitted:
    """Consumes a topic that is written once per server, in transactions, by eight producers at once."""

    def __init__(self) -> None:
        self.topics: dict[Peer, str] = {}

    def prepare(self, peer: Peer) -> None:
        topic = self.topics[peer] = fresh_topic(peer, PARTITIONS)
        transactions(peer, topic, 8, WRITTEN, RECORDS_WRITTEN, ABORT_EVERY)

    def measure(self, peer: Peer) -> Measured:
        committed = (WRITTEN - WRITTEN // ABORT_EVERY) * RECORDS_WRITTEN
        meter = Meter(peer)
        rate = consume(peer, self.topics[peer], committed, "isolation.level=read_committed")
        return meter.figure(per_megabyte(committed * RECORD_BYTES / 1e6), rate)


def transaction_cases() -> list[Case]:
    reading = ReadingCommitted()
    more = "more"
    return [
        Case("transactions of 100 records, 1 producer", "txn/s", more, 1.0, ending(1, 3_000)),
        Case("transactions of 100 records, 8 producers", "txn/s", more, 1.0, ending(8, 8_000)),
        Case("consume read_committed, 10% aborted", "records/s", more, 1.0, reading.measure, reading.prepare),
    ]
