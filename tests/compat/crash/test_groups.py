"""A consumer group while the broker is killed: committed offsets are kept, and no record is skipped."""

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compat.crash.background_producers import BackgroundProducer, ConfluentProducer
from tests.compat.crash.checks import check_exactly_once, offsets_of, read_topic, wait_for_acknowledgements
from tests.compat.crash.conftest import admin_client, create_topic
from tests.compat.crash.killer import FROZEN, RESPONSES_HELD, Killer, repaired_logs
from tests.compat.support import DEADLINE_S, eventually

PARTITIONS = 4
# Errors that a client may get while the broker is down or has just restarted; any other fails the test.
TRANSIENT = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}


class Member:
    """A group member that processes records and then commits their offsets, in a thread."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self.processed: list[tuple[int, int]] = []  # partition, offset
        self.committed: dict[int, int] = {}  # acknowledged, by partition
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
                if message.error().code() not in TRANSIENT:
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
            if error.args[0].code() not in TRANSIENT:
                raise
            self.failures.append(error.args[0].name())
        else:
            self.committed.update((tp.partition, tp.offset) for tp in offsets)


@pytest.fixture
def new_member(killer: Killer, name: str, group: str, admin: AdminClient) -> Iterator[Callable[[], Member]]:
    """new_member(): a new member of the test's group."""
    create_topic(admin, name, PARTITIONS)
    members: list[Member] = []

    def start() -> Member:
        members.append(Member(killer.proxy.address, group, name))
        return members[-1]

    yield start
    for member in members:
        member.stop()


def committed_offsets(admin: AdminClient, group: str) -> dict[int, int]:
    """Return the group's committed offsets by partition, when the coordinator has loaded them."""

    def fetch() -> list[TopicPartition] | None:
        futures = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        try:
            return futures[group].result(DEADLINE_S).topic_partitions
        except KafkaException as error:
            if error.args[0].code() not in TRANSIENT:
                raise
            return None

    return {tp.partition: tp.offset for tp in eventually(fetch, "the offsets of the group") or () if tp.offset >= 0}


@pytest.mark.feature("kill -9")
@pytest.mark.client("confluent_kafka")
def test_committed_offsets_never_go_back(killer, new_member, new_producer, name, group):
    producer = new_producer(ConfluentProducer, name, PARTITIONS, **{"enable.idempotence": True})
    member = new_member()
    producer.start()
    previous: dict[int, int] = {}

    def wait_for_records(count: int) -> None:
        target = len(member.processed) + count
        before = sum(member.committed.values())
        eventually(
            lambda: member.error or (len(member.processed) >= target and sum(member.committed.values()) > before),
            "the group processes and commits",
            progress=lambda: (len(member.processed), sum(member.committed.values())),
        )
        assert member.error is None

    for moment in (RESPONSES_HELD, FROZEN, RESPONSES_HELD):
        wait_for_acknowledgements(producer, 50)
        wait_for_records(500)
        killer.kill(producer, name, moment)
        acknowledged = dict(member.committed)
        killer.start()
        committed = committed_offsets(admin_client(killer.proxy), group)
        for partition, offset in acknowledged.items():
            assert offset <= committed[partition], f"a commit of partition {partition} was acknowledged and is lost"
        for partition, offset in previous.items():
            assert offset <= committed[partition], f"the committed offset of partition {partition} went back"
        previous = committed
    wait_for_records(500)
    producer.stop()
    ends = dict(enumerate(producer.ledger.sent))
    eventually(
        lambda: member.error or member.committed == ends,
        "everything is processed and committed",
        progress=lambda: sum(member.committed.values()),
    )
    member.stop()
    assert member.error is None
    assert committed_offsets(admin_client(killer.proxy), group) == ends
    check_order(member, ends)
    killer.broker.stop()
    killer.broker.start()
    assert repaired_logs(killer.broker) == []
    check_exactly_once(producer.ledger, offsets_of(producer.ledger, read_topic(killer.proxy.address, name, PARTITIONS)))
    assert committed_offsets(admin_client(killer.proxy), group) == ends
    check_resumes(new_member, new_producer(ConfluentProducer, name, PARTITIONS), ends)


def check_resumes(new_member: Callable[[], Member], producer: BackgroundProducer, ends: dict[int, int]) -> None:
    """Check that a later member begins at the committed offsets."""
    later = new_member()
    producer.start()
    wait_for_acknowledgements(producer, 1)
    producer.stop()
    eventually(
        lambda: later.error or ends.keys() == {partition for partition, _ in later.processed},
        "records of every partition",
    )
    later.stop()
    assert later.error is None
    begun = dict(reversed(later.processed))
    assert begun == ends


def check_order(member: Member, ends: dict[int, int]) -> None:
    """Check that each partition was processed from 0 to its end without gaps."""
    reached = dict.fromkeys(ends, 0)
    for partition, offset in member.processed:
        assert offset <= reached[partition], f"{partition}: {reached[partition]}..{offset - 1} were skipped"
        reached[partition] = max(reached[partition], offset + 1)
    assert reached == ends
    assert member.assignments == 1, "members and generation survive the kills"
