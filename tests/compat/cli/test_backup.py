"""A backup of a broker that serves clients has what was acknowledged before it, and whole transactions."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from kbroker.cli.backup import backup, restore
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually, need_own_broker, running_broker

pytestmark = [pytest.mark.feature("kill -9"), pytest.mark.client("confluent_kafka")]

SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.segment.bytes": "1048576",
}
# With it, the log of single records has several segments.
PADDING = b"." * 5000
# Transactions write the same numbers to both; single records go to the first.
TOPICS = ("first", "second")


def number_in(message: Message) -> int:
    value = message.value()
    assert value is not None
    return int(value.split()[0])


class Work:
    """Produces single records and transactions in two threads. `single`, `committed`: the acknowledged numbers."""

    def __init__(self, bootstrap: str) -> None:
        self.single: list[int] = []
        self.committed: list[int] = []
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._produce, self._commit)]

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        yield
        self._stop.set()
        for thread in self._threads:
            thread.join(DEADLINE_S)

    def _produce(self) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 1})

        def on_delivery(error: object, message: Message) -> None:
            assert error is None
            self.single.append(number_in(message))

        number = 0
        while not self._stop.wait(0.002):
            producer.produce("single", b"%d %s" % (number, PADDING), on_delivery=on_delivery)
            producer.poll(0)
            number += 1
        producer.flush(DEADLINE_S)

    def _commit(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "transactional.id": "work", "transaction.timeout.ms": 2000}
        )
        producer.init_transactions()
        number = 0
        while not self._stop.is_set():
            producer.begin_transaction()
            for topic in TOPICS:
                producer.produce(topic, b"%d" % number)
            producer.commit_transaction()
            self.committed.append(number)
            number += 1


def read_committed(bootstrap: str, topic: str) -> list[int]:
    """Return the numbers in a topic, once no transaction is open in it."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "enable.partition.eof": True}
    reader = Consumer({**settings, "isolation.level": "read_committed"})
    _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)
    reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    numbers: list[int] = []

    def is_at_end() -> bool:
        for message in reader.consume(1000, 0.1):
            if message.error() is None:
                numbers.append(number_in(message))
            elif message.offset() >= end:
                return True
        return False

    eventually(is_at_end, f"the end of {topic}, without an open transaction", interval=0)
    reader.close()
    return numbers


def test_a_backup_of_a_broker_that_serves_clients(tmp_path: Path) -> None:
    need_own_broker()
    (tmp_path / "source").mkdir()
    with running_broker(tmp_path / "source", SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in ("single", *TOPICS)]).values():
            future.result(DEADLINE_S)
        work = Work(broker.bootstrap)
        with work.running():
            eventually(lambda: len(work.committed) > 50 and len(work.single) > 500, "records")
            before = set(work.single), set(work.committed)
            backup(str(broker.data_dir), str(tmp_path / "backup"))
            # The broker goes on.
            eventually(lambda: len(work.committed) > len(before[1]) + 20, "transactions after the backup")
    restored = tmp_path / "restored"
    restored.mkdir()
    restore(str(tmp_path / "backup"), str(restored / "data"))
    with running_broker(restored, SETTINGS) as broker:
        check(broker, *before)
        # It is a broker like any other.
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "work"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("first", b"-1")
        producer.commit_transaction()
        assert read_committed(broker.bootstrap, "first")[-1] == -1


def check(broker: BrokerProcess, single: set[int], committed: set[int]) -> None:
    found = read_committed(broker.bootstrap, "single")
    assert found == list(range(len(found)))
    assert single <= set(found)
    first, second = (read_committed(broker.bootstrap, topic) for topic in TOPICS)
    assert first == second == list(range(len(first)))
    assert committed <= set(first)
