"""Clients that treat moved positions in their own way: franz-go, kafka-go and rskafka, alone and after restarts."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.compat.queues.clients import Client, Got, Reader
from tests.compat.queues.program_clients import ProgramClient
from tests.compat.queues.reading_clients import RskafkaReader, kafka_go, queue_program, rskafka, rskafka_program
from tests.compat.queues.shrinking import CLOSING, shrink
from tests.compat.queues.stories import STORIES, closing_partitions, create, read_until
from tests.compat.support import DEADLINE_S, BrokerProcess, need_own_broker

pytestmark = [pytest.mark.compat, pytest.mark.feature("queues")]


def go_alone(bootstrap: str, directory: Path) -> Client:
    return ProgramClient([queue_program(directory), "franz-go", bootstrap], commits=False)


ALONE: dict[str, Callable[[str, Path], Client]] = {
    "go": go_alone,
    "kafka_go": lambda bootstrap, directory: kafka_go(queue_program(directory), bootstrap, in_group=False),
    "rskafka": lambda bootstrap, _: rskafka(rskafka_program(), bootstrap),
}


@pytest.fixture(
    scope="module", params=[pytest.param(client, marks=pytest.mark.client(client)) for client in ALONE], ids=str
)
def client(
    request: pytest.FixtureRequest, bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Client]:
    """Each client, with readers that are in no group."""
    need_own_broker()
    client = ALONE[request.param](bootstrap, tmp_path_factory.mktemp("program"))
    yield client
    client.close()


# In the story of closing partitions the readers of all partitions share a group.
@pytest.mark.parametrize(
    "story", [each for each in STORIES if each is not closing_partitions], ids=lambda s: s.__name__
)
def test_a_reader_without_a_group_does_not_notice(
    client: Client, bootstrap: str, name: str, story: Callable[[Client, str, str], None]
) -> None:
    story(client, bootstrap, name)


# A record with these headers is hidden on a topic with any of the features: that key was sent before.
HIDDEN = {"TAGS": "open", "TTL_MS": "0", "TIMER_DELAY_SEC": "3600", "IDEMPOTENCY_KEY": "first"}
SOURCE, SHRINKING = "source", "shrinking"
TOPICS = {
    SOURCE: {},
    "view": {"kbroker__view__of": SOURCE, "kbroker__view__filter": "paid"},
    "expiring": {"kbroker__ttl__enable": "true"},
    "deduplicated": {"kbroker__dedup__window__ms": "3600000"},
    "delayed": {"kbroker__delay__enable": "true"},
    SHRINKING: {},
}


def send_to_all(bootstrap: str, value: str, headers: dict[str, str]) -> None:
    """Send a record to each topic; of the one whose partition 1 closes, to that."""
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    errors: list[Any] = []
    for topic in TOPICS:
        if topic != "view":
            where = {"partition": 1} if topic == SHRINKING else {}
            producer.produce(
                topic, value, headers=list(headers.items()), on_delivery=lambda error, _: errors.append(error), **where
            )
    assert producer.flush(DEADLINE_S) == 0
    assert errors == [None] * (len(TOPICS) - 1)


class Restarted:
    """A reader of one topic. One in a group is closed and opened again; one without stays while the broker restarts."""

    def __init__(self, open_reader: Callable[[], Reader], in_group: bool) -> None:
        self._open, self._in_group = open_reader, in_group
        self._reader = open_reader()
        self.got: list[Got] = []

    def read(self, end: int, count: int) -> None:
        """Read up to `end`, or until there is nothing more than the `count` records of all reads."""

        def is_done(got: list[Got]) -> bool:
            position = self._reader.position()
            return len(self.got) + len(got) >= count and (position is None or position >= end)

        self.got += read_until(self._reader, is_done, f"{count} records, and position {end}")
        self.got += self._reader.poll()

    def before_restart(self) -> None:
        if self._in_group:
            self._reader.close()

    def after_restart(self) -> None:
        if self._in_group:
            self._reader = self._open()

    def close(self) -> None:
        self._reader.close()


@pytest.mark.parametrize(
    ("library", "in_group", "read_committed"),
    [
        pytest.param(library, in_group, committed, marks=pytest.mark.client(column))
        for library, column, in_group, committed in (
            ("franz-go", "go", False, False),
            ("franz-go", "go", True, True),
            ("kafka-go", "kafka_go", False, True),
            ("kafka-go", "kafka_go", True, False),
            ("rskafka", "rskafka", False, True),
        )
    ],
)
def test_no_position_rewinds_after_restarts(
    broker: BrokerProcess, tmp_path: Path, library: str, in_group: bool, read_committed: bool
) -> None:
    """Positions that moved over hidden records of a later leader epoch are valid when the broker starts again.

    franz-go checks its position against the history of leader epochs; kafka-go and rskafka stay at their offset.
    """
    bootstrap = broker.bootstrap
    program = rskafka_program() if library == "rskafka" else queue_program(tmp_path)
    for topic, configs in TOPICS.items():
        create(bootstrap, topic, partitions=2 if topic == SHRINKING else 1, **configs)
    send_to_all(bootstrap, "first", {"TAGS": "paid", "IDEMPOTENCY_KEY": "first"})
    assert shrink(bootstrap, SHRINKING) == CLOSING
    with ExitStack() as stack:

        def opener(topic: str) -> Callable[[], Reader]:
            partition = 1 if topic == SHRINKING else 0
            if library == "rskafka":
                return lambda: RskafkaReader(program, bootstrap, topic, partition)
            client = ProgramClient([program, library, bootstrap], commits=in_group)
            stack.callback(client.close)
            return lambda: client.reader(topic, f"{topic}-group", read_committed, partition)

        readers = {topic: Restarted(opener(topic), in_group) for topic in TOPICS if topic != SOURCE}
        if in_group:
            # A group reads all partitions of the topic, and the records that were forwarded.
            readers.pop(SHRINKING)
        for reader in readers.values():
            stack.enter_context(closing(reader))
            reader.read(1, 1)
        for value, headers, count in (("hidden", HIDDEN, 1), ("second", {"TAGS": "paid"}, 2)):
            for reader in readers.values():
                reader.before_restart()
            broker.restart()
            for reader in readers.values():
                reader.after_restart()
            send_to_all(bootstrap, value, headers)
            if value == "hidden":
                send_to_all(bootstrap, value, headers)
            for topic, reader in readers.items():
                # Nothing that was sent since the partition closed is read from it.
                reader.read(3, 1 if topic == SHRINKING else count)
        for topic, reader in readers.items():
            values = ["first"] if topic == SHRINKING else ["first", "second"]
            assert [record.value for record in reader.got] == values, topic
