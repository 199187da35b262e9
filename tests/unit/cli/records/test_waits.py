"""Commands say what they wait for, and end with one line that names it."""

import re
import signal
import socket
from collections.abc import Iterator

import pytest

from kbroker.cli import main
from kbroker.client import connection, consumer, producer, retries
from kbroker.testing import Broker


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module, name, seconds in (
        (connection, "NEGOTIATION_TIMEOUT_S", 0.4),
        (connection, "SILENT_FOR_S", 0.1),
        (retries, "SILENT_FOR_S", 0.1),
        (producer, "DELIVERY_FOR_S", 1.0),
        (consumer, "RETRY_FOR_S", 1.0),
    ):
        monkeypatch.setattr(module, name, seconds)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def kafka() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


def errors_of(capfd: pytest.CaptureFixture[str], *command: str) -> list[str]:
    """Run a command that fails, and return the lines of its standard error, without those of a busy machine."""
    capfd.readouterr()
    assert main(command) == 1
    out, err = capfd.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.startswith(("waiting", "kbroker", "Traceback"))]
    return lines if len(lines) == 2 else [line for line in lines if not line.startswith("waiting: no response")]


def test_a_full_disk_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    with Broker() as kafka:
        topic = kafka.topic()
        # The first producer makes the broker get producer ids, which it cannot when its disk is full.
        assert main(["produce", topic, "v", "-b", kafka.bootstrap]) == 0
        kafka.disk.fill()
        first, last = errors_of(capfd, "produce", topic, "v", "--partition", "0", "-b", kafka.bootstrap)
    # The first append has the words of the system, those after it are refused.
    assert re.fullmatch(rf"waiting: {topic}-0: .*(?i:no space left on).* \(KAFKA_STORAGE_ERROR\)", first)
    assert re.fullmatch(
        r"kbroker: record 1: .*(?i:no space left on).* \(KAFKA_STORAGE_ERROR\) \(0 records acknowledged\)", last
    )


@pytest.mark.parametrize(
    ("api", "command"), [("Produce", ("produce", "{}", "v", "-p", "0")), ("Fetch", ("consume", "{}", "-p", "0"))]
)
def test_a_leader_that_moves_is_named(
    kafka: Broker, api: str, command: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"v"], partition=0)
    words = [word.format(topic) for word in command]
    with kafka.fault(api=api, topic=topic, error="NOT_LEADER_OR_FOLLOWER"):
        first, last = errors_of(capfd, *words, "-b", kafka.bootstrap)
    assert first == f"waiting: {topic}-0: NOT_LEADER_OR_FOLLOWER"
    assert "(NOT_LEADER_OR_FOLLOWER)" in last


@pytest.mark.parametrize("command", [("produce", "t", "v"), ("consume", "t"), ("configs", "list"), ("topics", "list")])
def test_a_port_that_does_not_respond_is_named(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        first, last = errors_of(capfd, *command, "-b", address)
    assert first == f"waiting: no response from {address}"
    assert "no response to the first request within 0.4 s: is this the port of a Kafka broker" in last


def test_a_topic_that_is_created_is_named(kafka: Broker, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "fresh", "v", "-b", kafka.bootstrap]) == 0
    assert capfd.readouterr().err.endswith("created topic fresh with 1 partition\nproduced 1 record to fresh\n")
