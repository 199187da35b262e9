"""Members of kafka-python that were removed from their group process nothing a second time (transactional_consumer.py).

Each test is a way in which kafka-python 3.0.12 on its own does, with Apache Kafka as well.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import CommitFailedError, KafkaTimeoutError
from kafka.structs import OffsetAndMetadata

from protocol.apis import ApiKey
from tests.compat.crash.line import Line
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually, need_own_broker, running_broker
from tests.compat.transactions.clients import COMMITTED
from tests.compat.transactions.confluent import ConfluentClient
from tests.compat.transactions.flows import remove_member
from tests.compat.transactions.programs.transactional_consumer import Batch, TransactionalConsumer

pytestmark = [pytest.mark.feature("exactly once, kill -9"), pytest.mark.client("kafka_python")]

SOURCE, TARGET, GROUP = "source", "target", "group"
INPUTS = [b"%d" % number for number in range(60)]
AT_A_TIME = 20


class Program:
    """Consume, transform, produce: one transaction at a time."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        common = {
            "bootstrap_servers": bootstrap,
            "client_id": name,
            "reconnect_backoff_ms": 20,
            "reconnect_backoff_max_ms": 200,
            "retry_backoff_ms": 20,
        }
        self.consumer = KafkaConsumer(
            SOURCE,
            **common,
            group_id=GROUP,
            isolation_level="read_committed",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=30_000,
            heartbeat_interval_ms=100,
            max_poll_records=AT_A_TIME,
        )
        self.inputs = TransactionalConsumer(self.consumer)
        self._producer = KafkaProducer(**common, transactional_id=name)
        self._producer.init_transactions()

    def take(self) -> Batch:
        """Poll until there are records."""
        found: list[Batch] = []

        def polled() -> bool:
            found[:] = [self.inputs.poll(350)]
            return bool(found[0].records)

        eventually(polled, "records", interval=0)
        return found[0]

    def process(self, batch: Batch) -> None:
        """Raises CommitFailedError."""
        self._producer.begin_transaction()
        for records in batch.records.values():
            for record in records:
                self._producer.send(TARGET, record.value)
        self._producer.flush()
        ends = {tp: OffsetAndMetadata(records[-1].offset + 1, "", -1) for tp, records in batch.records.items()}
        self._producer.send_offsets_to_transaction(ends, batch.member)
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self.consumer.close()
        self._producer.close()


@pytest.fixture
def line() -> Iterator[Line]:
    need_own_broker()
    made = Line()
    yield made
    made.close()


@pytest.fixture
def broker(line: Line, tmp_path) -> Iterator[BrokerProcess]:
    """It has a topic with inputs in one of two partitions, and an empty one for the results."""
    with running_broker(tmp_path, advertise=line.address) as own:
        line.lead_to(own.bootstrap)
        admin = AdminClient({"bootstrap.servers": line.address})
        for made in admin.create_topics([NewTopic(SOURCE, 2, 1), NewTopic(TARGET, 1, 1)]).values():
            made.result(DEADLINE_S)
        producer = KafkaProducer(bootstrap_servers=line.address)
        for value in INPUTS:
            producer.send(SOURCE, value, partition=0)
        producer.close()
        yield own


@pytest.fixture
def program(line: Line, broker: BrokerProcess) -> Iterator[Callable[[str], Program]]:
    """program(name): a new member of the group."""
    made: list[Program] = []

    def start(name: str) -> Program:
        made.append(Program(line.address, name))
        return made[-1]

    yield start
    for one in made:
        one.close()


def is_removed(member: Program) -> bool:
    """Whether it knows."""
    return bool(member.consumer.group_metadata().generation_id < 0)


def remove(line: Line, member: Program) -> None:
    remove_member(line.address, GROUP, member.name)
    eventually(lambda: is_removed(member), "a heartbeat that is refused")


def process_the_rest(member: Program, inputs: int) -> None:
    while inputs > 0:
        batch = member.take()
        member.process(batch)
        inputs -= sum(map(len, batch.records.values()))


def check_results(line: Line) -> None:
    client = ConfluentClient(line.address)
    try:
        ends = partial(client.end, TARGET)
        eventually(lambda: ends(COMMITTED) == ends("read_uncommitted"), "the end of every transaction")
        assert client.read(TARGET, COMMITTED) == [INPUTS]
    finally:
        client.close()


def test_offsets_of_a_member_that_knows_of_its_removal_are_refused(line, program):
    removed = program("removed")
    batch = removed.take()
    remove(line, removed)
    other = program("other")
    process_the_rest(other, len(INPUTS))
    with pytest.raises(CommitFailedError):
        removed.process(batch)
    removed.abort()
    check_results(line)


def test_a_late_response_with_committed_offsets_is_not_used_in_a_later_generation(line, program):
    removed = program("removed")
    line.hold(ApiKey.OFFSET_FETCH)
    eventually(
        lambda: not removed.inputs.poll(50).records and line.held(ApiKey.OFFSET_FETCH), "a held response", interval=0
    )
    line.release()
    remove(line, removed)
    other = program("other")
    other.process(other.take())
    other.close()
    process_the_rest(removed, len(INPUTS) - AT_A_TIME)
    check_results(line)


def test_a_late_response_for_one_of_the_partitions_is_not_used_either(line, program):
    """As it is left by a generation in which the member had this partition alone."""
    removed = program("removed")
    removed.take()
    line.hold(ApiKey.OFFSET_FETCH)
    with pytest.raises(KafkaTimeoutError):
        removed.consumer.committed(TopicPartition(SOURCE, 0), timeout_ms=200)
    eventually(lambda: line.held(ApiKey.OFFSET_FETCH), "a held response")
    line.release()
    remove(line, removed)
    other = program("other")
    other.process(other.take())
    other.close()
    process_the_rest(removed, len(INPUTS) - AT_A_TIME)
    check_results(line)


def test_positions_do_not_outlive_a_removal_during_a_rebalance(line, broker, program):
    removed = program("removed")
    removed.process(removed.take())
    removed.consumer._coordinator.request_rejoin()  # as REBALANCE_IN_PROGRESS does
    line.hold(ApiKey.SYNC_GROUP)
    eventually(
        lambda: not removed.inputs.poll(50).records and line.held(ApiKey.SYNC_GROUP), "a held response", interval=0
    )
    broker.kill()
    line.release()
    broker.start()
    remove_member(line.address, GROUP, removed.name)
    other = program("other")
    other.process(other.take())
    other.close()
    process_the_rest(removed, len(INPUTS) - 2 * AT_A_TIME)
    check_results(line)
