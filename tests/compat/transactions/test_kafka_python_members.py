"""A kafka-python member that was removed from its group processes no record twice (transactional_consumer.py).

Each test is a case in which kafka-python 3.0.12 without that module processes records twice, with Apache Kafka as well.
"""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import CommitFailedError, KafkaTimeoutError
from kafka.structs import OffsetAndMetadata

from protocol.apis import ApiKey
from tests.compat.crash.proxy import Proxy
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually, need_own_broker, running_broker
from tests.compat.transactions.clients import COMMITTED
from tests.compat.transactions.confluent_client import ConfluentClient
from tests.compat.transactions.flows import remove_member
from tests.compat.transactions.programs.transactional_consumer import Batch, TransactionalConsumer

pytestmark = [pytest.mark.feature("exactly once, kill -9"), pytest.mark.client("kafka_python")]

SOURCE, TARGET, GROUP = "source", "target", "group"
INPUTS = [b"%d" % number for number in range(60)]
MAX_POLL_RECORDS = 20


class Program:
    """Consumes, transforms and produces, one transaction at a time."""

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
            max_poll_records=MAX_POLL_RECORDS,
        )
        self.inputs = TransactionalConsumer(self.consumer)
        self._producer = KafkaProducer(**common, transactional_id=name)
        self._producer.init_transactions()

    def poll(self) -> Batch:
        """Poll until there are records."""
        batch = self.inputs.poll(350)

        def has_records() -> bool:
            nonlocal batch
            batch = batch if batch.records else self.inputs.poll(350)
            return bool(batch.records)

        eventually(has_records, "records", interval=0)
        return batch

    def process(self, batch: Batch) -> None:
        """Process the polled records in a transaction. Raises CommitFailedError."""
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
def proxy() -> Iterator[Proxy]:
    need_own_broker()
    proxy = Proxy()
    yield proxy
    proxy.close()


@pytest.fixture
def broker(proxy: Proxy, tmp_path) -> Iterator[BrokerProcess]:
    """A broker with a topic that has inputs in one of two partitions, and an empty topic for the results."""
    with running_broker(tmp_path, advertise=proxy.address) as own:
        proxy.forward_to(own.bootstrap)
        admin = AdminClient({"bootstrap.servers": proxy.address})
        for future in admin.create_topics([NewTopic(SOURCE, 2, 1), NewTopic(TARGET, 1, 1)]).values():
            future.result(DEADLINE_S)
        producer = KafkaProducer(bootstrap_servers=proxy.address)
        for value in INPUTS:
            producer.send(SOURCE, value, partition=0)
        producer.close()
        yield own


@pytest.fixture
def program(proxy: Proxy, broker: BrokerProcess) -> Iterator[Callable[[str], Program]]:
    """program(name): a new member of the group."""
    programs: list[Program] = []

    def start(name: str) -> Program:
        programs.append(Program(proxy.address, name))
        return programs[-1]

    yield start
    for running in programs:
        running.close()


def is_removed(member: Program) -> bool:
    """Return whether a heartbeat has failed."""
    return bool(member.consumer.group_metadata().generation_id < 0)


def remove(proxy: Proxy, member: Program) -> None:
    remove_member(proxy.address, GROUP, member.name)
    eventually(lambda: is_removed(member), "a failed heartbeat")


def process_remaining(member: Program, inputs: int) -> None:
    while inputs > 0:
        batch = member.poll()
        member.process(batch)
        inputs -= sum(map(len, batch.records.values()))


def check_results(proxy: Proxy) -> None:
    client = ConfluentClient(proxy.address)
    try:
        ends = partial(client.end, TARGET)
        eventually(lambda: ends(COMMITTED) == ends("read_uncommitted"), "the end of every transaction")
        assert client.read(TARGET, COMMITTED) == [INPUTS]
    finally:
        client.close()


def test_a_removed_member_cannot_commit_offsets(proxy, program):
    removed = program("removed")
    batch = removed.poll()
    remove(proxy, removed)
    other = program("other")
    process_remaining(other, len(INPUTS))
    with pytest.raises(CommitFailedError):
        removed.process(batch)
    removed.abort()
    check_results(proxy)


def test_a_late_response_with_committed_offsets_is_not_used_in_a_later_generation(proxy, program):
    removed = program("removed")
    proxy.hold_responses(ApiKey.OFFSET_FETCH)
    eventually(
        lambda: not removed.inputs.poll(50).records and proxy.held(ApiKey.OFFSET_FETCH), "a held response", interval=0
    )
    proxy.release_responses()
    remove(proxy, removed)
    other = program("other")
    other.process(other.poll())
    other.close()
    process_remaining(removed, len(INPUTS) - MAX_POLL_RECORDS)
    check_results(proxy)


def test_a_late_response_for_one_partition_is_not_used(proxy, program):
    """It responds to a request of a generation in which the member had only this partition."""
    removed = program("removed")
    removed.poll()
    proxy.hold_responses(ApiKey.OFFSET_FETCH)
    with pytest.raises(KafkaTimeoutError):
        removed.consumer.committed(TopicPartition(SOURCE, 0), timeout_ms=200)
    eventually(lambda: proxy.held(ApiKey.OFFSET_FETCH), "a held response")
    proxy.release_responses()
    remove(proxy, removed)
    other = program("other")
    other.process(other.poll())
    other.close()
    process_remaining(removed, len(INPUTS) - MAX_POLL_RECORDS)
    check_results(proxy)


def test_positions_do_not_outlive_a_removal_during_a_rebalance(proxy, broker, program):
    removed = program("removed")
    removed.process(removed.poll())
    removed.consumer._coordinator.request_rejoin()  # as REBALANCE_IN_PROGRESS does
    proxy.hold_responses(ApiKey.SYNC_GROUP)
    eventually(
        lambda: not removed.inputs.poll(50).records and proxy.held(ApiKey.SYNC_GROUP), "a held response", interval=0
    )
    broker.kill()
    proxy.release_responses()
    broker.start()
    remove_member(proxy.address, GROUP, removed.name)
    other = program("other")
    other.process(other.poll())
    other.close()
    process_remaining(removed, len(INPUTS) - 2 * MAX_POLL_RECORDS)
    check_results(proxy)
