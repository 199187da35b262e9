"""A consumer group that goes on while the broker is killed: what it has committed, what it reads again."""

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compat.crash.conftest import connected, create_topic
from tests.compat.crash.kills import FROZEN, HELD, Killer, check_exactly_once, offsets_of, progress, read_all, repaired
from tests.compat.crash.writers import ConfluentWriter, Writer
from tests.compat.support import DEADLINE_S, eventually

PARTITIONS = 4
# What a commit may meet while the broker is away or has just come back; anything else is the test's failure.
PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


class Worker:
    """A member that processes records and then commits them, on a thread of its own."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.processed: list[tuple[int, int]] = []  # partition, offset
        self.committed: dict[int, int] = {}  # acknowledged commits
        self.assignments = 0
        self.failures: list[str] = []
        self.error: BaseException | None = None
        self._ended = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 200,
                "session.timeout.ms": 20_000,
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "log_level": 2,
            }
        )
        self._consumer.subscribe([topic], on_assign=self._assigned)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the member did not stop"

    def _assigned(self, _: Consumer, __: list[TopicPartition]) -> None:
        self.assignments += 1

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._work()
        except BaseException as error:
            self.error = error
        finally:
            self._consumer.close()

    def _work(self) -> None:
        ends: dict[int, int] = {}
        topic = ""
        for message in self._consumer.consume(50, timeout=0.1):
            if message.error():
                if message.error().code() not in PASSING:
                    raise KafkaException(message.error())
                continue
            topic = message.topic()
            self.processed.append((message.partition(), message.offset()))
            ends[message.partition()] = message.offset() + 1
        if ends:
            self._commit([TopicPartition(topic, partition, offset) for partition, offset in ends.items()])

    def _commit(self, offsets: list[TopicPartition]) -> None:
        try:
            for tp in self._consumer.commit(offsets=offsets, asynchronous=False):
                if tp.error:
                    raise KafkaException(tp.error)
        except KafkaException as error:
            if error.args[0].code() not in PASSING:
                raise
            self.failures.append(error.args[0].name())
        else:
            self.committed.update((tp.partition, tp.offset) for tp in offsets)


@pytest.fixture
def working(killer: Killer, name: str, group: str, admin: AdminClient) -> Iterator[Callable[[], Worker]]:
    """working(): a new member of the test's group."""
    create_topic(admin, name, PARTITIONS)
    made: list[Worker] = []

    def start() -> Worker:
        made.append(Worker(killer.line.address, group, name))
        return made[-1]

    yield start
    for worker in made:
        worker.stop()


def stored(admin: AdminClient, group: str) -> dict[int, int]:
    """The group's committed offsets, as the broker has them, when it has loaded them."""

    def ask() -> list[TopicPartition] | None:
        answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group]
        try:
            return answer.result(DEADLINE_S).topic_partitions
        except KafkaException as error:
            if error.args[0].code() not in PASSING:
                raise
            return None

    return {tp.partition: tp.offset for tp in eventually(ask, "the offsets of the group") or () if tp.offset >= 0}


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_a_group_goes_on_and_its_commits_never_go_back(killer, working, writing, name, group):
    writer = writing(ConfluentWriter, name, PARTITIONS, **{"enable.idempotence": True})
    worker = working()
    writer.start()
    seen: dict[int, int] = {}

    def goes_on(by: int) -> None:
        wanted = len(worker.processed) + by
        before = sum(worker.committed.values())
        eventually(
            lambda: worker.error or (len(worker.processed) >= wanted and sum(worker.committed.values()) > before),
            "the group processes and commits",
            progress=lambda: (len(worker.processed), sum(worker.committed.values())),
        )
        assert worker.error is None

    for how in (HELD, FROZEN, HELD):
        progress(writer, 50)
        goes_on(500)
        killer.kill(writer, name, how)
        acknowledged = dict(worker.committed)
        killer.start()
        found = stored(connected(killer.line), group)
        for partition, offset in acknowledged.items():
            assert offset <= found[partition], f"a commit of partition {partition} was acknowledged and is lost"
        for partition, offset in seen.items():
            assert offset <= found[partition], f"the committed offset of partition {partition} went back"
        seen = found
    goes_on(500)
    writer.stop()
    ends = dict(enumerate(writer.ledger.sent))
    eventually(
        lambda: worker.error or worker.committed == ends,
        "everything is processed and committed",
        progress=lambda: sum(worker.committed.values()),
    )
    worker.stop()
    assert worker.error is None
    assert stored(connected(killer.line), group) == ends
    check_order(worker, ends)
    killer.broker.stop()
    killer.broker.start()
    assert repaired(killer.broker) == []
    check_exactly_once(writer.ledger, offsets_of(writer.ledger, read_all(killer.line.address, name, PARTITIONS)))
    assert stored(connected(killer.line), group) == ends
    check_resumes(working, writing(ConfluentWriter, name, PARTITIONS), ends)


def check_resumes(working: Callable[[], Worker], writer: Writer, ends: dict[int, int]) -> None:
    """A member that comes later begins where the group has stopped."""
    later = working()
    writer.start()
    progress(writer, 1)
    writer.stop()
    eventually(lambda: later.error or ends.keys() == {partition for partition, _ in later.processed}, "its turn")
    later.stop()
    assert later.error is None
    begun = dict(reversed(later.processed))
    assert begun == ends


def check_order(worker: Worker, ends: dict[int, int]) -> None:
    """Each partition was processed from 0 to its end, and nothing was skipped."""
    reached = dict.fromkeys(ends, 0)
    for partition, offset in worker.processed:
        assert offset <= reached[partition], f"{partition}: {reached[partition]}..{offset - 1} were skipped"
        reached[partition] = max(reached[partition], offset + 1)
    assert reached == ends
    assert worker.assignments == 1, "the members and their generation outlive the broker"
