"""Partitions close under producers, while leaders of closing partitions and of those that remain are killed."""

import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.compat.cluster.cluster import IS_KBROKER, Cluster
from tests.compat.cluster.work import CONFLUENT, Work, create_topic
from tests.compat.crash.background_producers import VALUE
from tests.compat.queues.shrinking import CLOSING, shrink
from tests.compat.support import DEADLINE_S, eventually, unique

pytestmark = pytest.mark.skipif(not IS_KBROKER, reason="not run: another program's brokers")

PARTITIONS, REMAINING = 4, 2
# Seconds between two transactions.
PAUSE_S = 0.2


class Transactions:
    """Transactions of one producer, of a record in each partition; every third is aborted."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.committed: list[bytes] = []
        self.error: BaseException | None = None
        self._topic = topic
        self._producer = Producer({**CONFLUENT, "bootstrap.servers": bootstrap, "transactional.id": topic})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for_more(self, count: int = 3) -> None:
        target = len(self.committed) + count * PARTITIONS
        eventually(lambda: self.error or len(self.committed) >= target, f"{count} more transactions")
        assert self.error is None, self.error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the transactions did not end"
        assert self.error is None, self.error

    def _run(self) -> None:
        try:
            self._producer.init_transactions(DEADLINE_S)
            number = 0
            while not self._stopping.wait(PAUSE_S):
                self._transact(number, number % 3 != 2)
                number += 1
        except BaseException as error:
            self.error = error

    def _transact(self, number: int, commit: bool) -> None:
        kind = b"committed" if commit else b"aborted"
        values = [b"%s %d %d" % (kind, partition, number) for partition in range(PARTITIONS)]
        self._producer.begin_transaction()
        for partition, value in enumerate(values):
            self._producer.produce(self._topic, value, partition=partition)
        while True:
            try:
                if commit:
                    self._producer.commit_transaction(DEADLINE_S)
                    self.committed += values
                else:
                    self._producer.abort_transaction(DEADLINE_S)
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


def read_all(cluster: Cluster, topic: str) -> list[list[bytes]]:
    """Return the values that a consumer of committed records reads of each partition."""
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "group.id": unique("group"),
        "auto.offset.reset": "earliest",
        "enable.partition.eof": True,
    }
    values: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    unfinished = set(range(PARTITIONS))
    consumer = Consumer(settings)

    def is_read() -> bool:
        for message in consumer.consume(1000, timeout=0.2):
            error = message.error()
            if error is None:
                values[message.partition()].append(message.value())
            elif error.name() == "_PARTITION_EOF":
                unfinished.discard(message.partition())
            else:
                raise KafkaException(error)
        return not unfinished

    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        eventually(is_read, f"the ends of {topic}", interval=0)
    finally:
        consumer.close()
    return values


def numbers_of(values: list[bytes], name: str, partition: int) -> Iterator[int]:
    """Return the numbers of the records that a producer has sent to a partition."""
    for value in values:
        match = VALUE.match(value)
        if match and (match[1], int(match[2])) == (name.encode(), partition):
            yield int(match[3])


def test_each_record_lands_once_while_leaders_are_killed(cluster: Cluster) -> None:
    controller = cluster.controller()
    first, second = cluster.others(controller)
    # Partition 2 is forwarded to 0, and 3 to 1: each broker leads a closing partition and a target of the other one.
    targets = [[first, second, controller], [second, first, controller]]
    topic = create_topic(cluster, [*targets, [second, controller, first], [first, controller, second]])
    work, transactions = Work(cluster, topic, PARTITIONS), Transactions(cluster.bootstrap, topic)
    try:
        work.start()
        transactions.wait_for_more()
        assert shrink(cluster.brokers[controller].bootstrap, topic, REMAINING) == CLOSING
        work.wait_for_more()
        for killed in (first, second):
            cluster.kill(killed)
            work.wait_for_more()
            transactions.wait_for_more()
            cluster.start(killed)
            cluster.wait_until_healthy()
        transactions.wait_for_more()
        work.stop()
        transactions.stop()
        cluster.wait_until_healthy()
    except BaseException:
        work.abandon()
        raise

    ledgers = [producer.ledger for producer in work.producers]
    expected = sum(sum(ledger.sent) for ledger in ledgers) + len(transactions.committed)
    stored: list[list[bytes]] = []

    def is_forwarded() -> bool:
        stored[:] = read_all(cluster, topic)
        return sum(map(len, stored)) >= expected

    eventually(is_forwarded, f"{expected} records", interval=0.5)
    counts = Counter(value for values in stored for value in values if not VALUE.match(value))
    assert counts == Counter(transactions.committed)
    for ledger in ledgers:
        for partition in range(PARTITIONS):
            # What came before the change is in the closing partition; both parts are in order.
            kept = list(numbers_of(stored[partition], ledger.name, partition))
            moved = list(numbers_of(stored[partition % REMAINING], ledger.name, partition))
            numbers = kept if partition < REMAINING else kept + moved
            assert numbers == list(range(ledger.sent[partition])), f"{ledger.name}, partition {partition}"
            assert partition < REMAINING or (kept and moved)
