"""Kafka Streams with the streams protocol (KIP-1071), and kafka-streams-groups."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.streams.application import EXACTLY_ONCE, SETTINGS, TASKS, Instance, Words, application_command
from tests.compat.support import EXTERNAL_BOOTSTRAP, eventually, running_broker, unique
from tests.compat.transactions.clients import COMMITTED
from tests.compat.transactions.confluent_client import ConfluentClient

pytestmark = [pytest.mark.feature("Kafka Streams"), pytest.mark.client("kafka_tools")]

Start = Callable[..., Instance]


@pytest.fixture(scope="module")
def streams_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the broker."""
    if EXTERNAL_BOOTSTRAP:
        yield EXTERNAL_BOOTSTRAP
        return
    with running_broker(tmp_path_factory.mktemp("streams"), SETTINGS) as broker:
        yield broker.bootstrap
        broker.stop()


@pytest.fixture
def application() -> str:
    return unique("streams")


@pytest.fixture
def start(jvm: Jvm, streams_broker: str, application: str, tmp_path: Path) -> Iterator[Start]:
    """start(name, kind, *settings): an instance of the application."""
    command, started = application_command(), []

    def start(name: str, kind: str = "count", *settings: str) -> Instance:
        started.append(Instance(command, streams_broker, application, kind, tmp_path / name, *settings))
        started[-1].start()
        return started[-1]

    yield start
    for instance in started:
        instance.kill()


@pytest.fixture
def tool(jvm: Jvm, streams_broker: str) -> Callable[..., str]:
    """tool(name, *arguments, stdin=""): the output of a tool, which must succeed."""
    return lambda name, *arguments, stdin="": (
        jvm.check(name, "--bootstrap-server", streams_broker, *arguments, stdin=stdin).out
    )


@pytest.fixture
def create(tool: Callable[..., str], application: str) -> Callable[[str, int], None]:
    """create(name, partitions): creates a topic of the application."""
    return lambda name, partitions: tool(
        "kafka-topics", "--create", "--topic", f"{application}-{name}", "--partitions", str(partitions)
    )


@pytest.fixture
def words(streams_broker: str, application: str, create: Callable[[str, int], None]) -> Iterator[Words]:
    create("words", 3)
    create("counts", 3)
    words = Words(streams_broker, application)
    yield words
    words.close()


def set_standbys(tool: Callable[..., str], application: str) -> None:
    change = ("--alter", "--add-config", "streams.num.standby.replicas=1")
    tool("kafka-configs", "--group", application, *change)


def test_two_instances_count_every_word_once(words: Words, start: Start, application: str, tool) -> None:
    """One is killed, its standby tasks continue; it comes back, and leaves in the end."""
    set_standbys(tool, application)
    first = start("first", "count", EXACTLY_ONCE)
    words.write(40)
    words.wait()
    assert first.tasks() == (TASKS, set())
    second = start("second", "count", EXACTLY_ONCE)

    def are_balanced() -> bool:
        (active, standby), (other, other_standby) = first.tasks(), second.tasks()
        is_even = len(active) == len(other) == 3 and active | other == TASKS
        return (
            is_even
            and standby == {task for task in other if task > "1"}
            and other_standby == {task for task in active if task > "1"}
        )

    eventually(are_balanced, "three tasks for each, and standby tasks", interval=0.2)
    words.write(40)
    first.kill()
    words.write(40)
    words.wait()
    assert second.tasks() == (TASKS, set())
    first.start()
    eventually(are_balanced, "three tasks for each, and standby tasks", interval=0.2)
    second.leave()
    words.write(40)
    words.wait()
    assert first.tasks() == (TASKS, set())


def test_the_tool_describes_resets_and_deletes_a_group(
    words: Words, start: Start, application: str, tool: Callable[..., str], jvm: Jvm, streams_broker: str
) -> None:
    at = ("--group", application)
    instance = start("instance")
    words.write(10)
    words.wait()
    assert application in tool("kafka-streams-groups", "--list").split()
    assert application in tool("kafka-groups", "--list", "--streams")
    state = tool("kafka-streams-groups", "--describe", *at, "--state").split()
    assert "Stable" in state
    members = tool("kafka-streams-groups", "--describe", *at, "--members")
    assert "0:[0,1,2]" in members.replace(" ", "")
    lags = tool("kafka-streams-groups", "--describe", *at).splitlines()
    partitions = [line.split()[1:3] for line in lags if application in line]
    assert [f"{application}-words", "0"] in partitions
    assert [f"{application}-by-word-repartition", "2"] in partitions
    topics = tool("kafka-topics", "--describe", "--topic", f"{application}-counts-changelog")
    assert "cleanup.policy=compact" in topics
    refused = jvm.run("kafka-streams-groups", "--bootstrap-server", streams_broker, "--delete", *at)
    assert "is not EMPTY" in refused.out + refused.err
    instance.leave()
    instance.kill()
    reset = ("--reset-offsets", *at, "--all-input-topics", "--to-earliest", "--execute")
    assert "0" in tool("kafka-streams-groups", *reset)
    assert "Empty" in tool("kafka-streams-groups", "--describe", *at, "--state").split()
    tool("kafka-streams-groups", "--delete", *at, "--delete-all-internal-topics")
    assert application not in tool("kafka-streams-groups", "--list").split()
    left = tool("kafka-topics", "--list").split()
    assert {name for name in left if name.startswith(application)} == {f"{application}-words", f"{application}-counts"}


def test_topics_are_joined_if_they_have_as_many_partitions(
    start: Start, create: Callable[[str, int], None], application: str, streams_broker: str, tool: Callable[..., str]
) -> None:
    """The application fails while a source topic is missing, or has another number of partitions."""

    def write(topic: str, *lines: str) -> None:
        keyed = ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")
        tool("kafka-console-producer", "--topic", f"{application}-{topic}", *keyed, stdin="\n".join(lines))

    create("left", 3)
    create("joined", 1)
    first = start("first", "join")
    missing = f"Source topics {application}-right are missing.. Timeout exceeded after "
    assert first.failure().startswith(f"MissingSourceTopicException: Missing source topics: {missing}")
    first.kill()
    create("right", 2)
    first.start()
    counts = f"{{{application}-left=3, {application}-right=2}}"
    assert f"Following topics do not have the same number of partitions: [{counts}]" in first.failure()
    first.kill()
    tool("kafka-topics", "--alter", "--topic", f"{application}-right", "--partitions", "3")
    write("right", "a:A", "b:B", "c:C", "d:D")
    write("left", "a:1", "c:3", "d:4")
    first.start()
    client = ConfluentClient(streams_broker)

    def joined() -> list[bytes]:
        return sorted(client.read(f"{application}-joined", COMMITTED)[0])

    eventually(lambda: joined() == [b"1 A", b"3 C", b"4 D"], "the joined values", interval=0.2, progress=joined)
    client.close()


def test_an_instance_with_another_topology_fails(words: Words, start: Start) -> None:
    first = start("first")
    words.write(10)
    words.wait()
    assert "Topology updates are not supported yet." in start("second", "join").failure()
    words.write(10)
    words.wait()
    assert first.tasks() == (TASKS, set())


def test_the_tasks_of_a_frozen_instance_go_to_another_one(words: Words, start: Start) -> None:
    first = start("first", "count", EXACTLY_ONCE)
    words.write(20)
    words.wait()
    second = start("second", "count", EXACTLY_ONCE)
    eventually(lambda: len(second.tasks()[0]) == 3, "three tasks of the second instance", interval=0.2)
    words.write(20)
    first.freeze()
    words.write(20)
    words.wait()
    assert second.tasks()[0] == TASKS
    first.thaw()
    eventually(lambda: len(first.tasks()[0]) == 3, "three tasks of the first instance", interval=0.2)
    words.write(20)
    words.wait()


def test_one_instance_ends_all(words: Words, start: Start) -> None:
    """The status SHUTDOWN_APPLICATION."""
    first, second = start("first"), start("second")
    words.write(10)
    words.wait()
    eventually(lambda: first.tasks()[0] | second.tasks()[0] == TASKS, "all tasks", interval=0.2)
    words.write_poison()
    for instance in (first, second):
        instance.wait_for("error")


def test_the_source_topic_grows(words: Words, start: Start, tool: Callable[..., str], application: str) -> None:
    """The internal topics do not grow with it: that ends the application."""
    instance = start("instance")
    words.write(10)
    words.wait()
    tool("kafka-topics", "--alter", "--topic", f"{application}-words", "--partitions", "4")
    topic = f"{application}-by-word-repartition"
    assert f"Existing topic {topic} has different number of partitions: expected 4, found 3" in instance.failure()
