"""Kafka Streams applications with the streams protocol: instances as processes, and their topics."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.compat.java_programs import classpath_of, java_command
from tests.compat.support import eventually
from tests.compat.transactions.clients import COMMITTED
from tests.compat.transactions.confluent_client import ConfluentClient
from tests.compat.transactions.java_client import jar
from tests.compat.transactions.processes import Program

SETTINGS = {
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "200",
    "group.streams.min.session.timeout.ms": "500",
    "group.streams.session.timeout.ms": "2000",
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.assignment.interval.ms": "0",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "100",
    "offsets.topic.num.partitions": "4",
}
WORDS = [b"one", b"two", b"three", b"four", b"five"]
TASKS = {f"{subtopology}_{partition}" for subtopology in (0, 1) for partition in range(3)}
EXACTLY_ONCE = "processing.guarantee=exactly_once_v2"
PROGRAM = Path(__file__).parent / "programs" / "Application.java"


def application_command() -> list[str]:
    return java_command("Application", classpath_of(PROGRAM, jar("kafka-streams", "4.4.0")))


class Instance(Program):
    """An instance of an application: one process with one thread."""

    def __init__(
        self, command: Sequence[str], bootstrap: str, application: str, kind: str, directory: Path, *settings: str
    ) -> None:
        super().__init__([*command, bootstrap, application, kind, str(directory / "state"), *settings], directory)

    def tasks(self) -> tuple[set[str], set[str]]:
        """Return the ids of its active and its standby tasks."""
        before = self.line_counts()["tasks"]
        self._send_line("tasks")
        eventually(lambda: self.line_counts()["tasks"] > before, f"the tasks of {self.name}", progress=self.tail)
        line = [line for line in self.lines() if line.startswith("tasks: ")][-1]
        assert line.endswith("]"), f"{self.name} has no thread any more: {self.tail()}"
        active, standby = line.removeprefix("tasks: [").removesuffix("]").split("] [")
        return set(active.split(", ")) - {""}, set(standby.split(", ")) - {""}

    def leave(self) -> None:
        """End its threads; it leaves the group."""
        self._send_line("leave")
        self.wait_for("not_running")

    def wait_for(self, line: str) -> None:
        """Wait until it has printed a line since its last start, up to a colon."""
        eventually(
            lambda: any(each.partition(":")[0] == line for each in self._output().read_text().splitlines()),
            f"{line} of {self.name}",
            progress=self.tail,
        )

    def failure(self) -> str:
        self.wait_for("failed")
        (line,) = {line for line in self._output().read_text().splitlines() if line.startswith("failed: ")}
        return line.removeprefix("failed: ")


class Words:
    """The words of a counting application, and its counts."""

    def __init__(self, bootstrap: str, application: str) -> None:
        self._client = ConfluentClient(bootstrap)
        self._producer = self._client.plain()
        self._application = application
        self.written: Counter[bytes] = Counter()

    def write_poison(self) -> None:
        self._producer.send(f"{self._application}-words", b"poison")
        self._producer.flush()

    def write(self, rounds: int) -> None:
        for number in range(rounds):
            for word in WORDS:
                self._producer.send(f"{self._application}-words", word, number % 3)
                self.written[word] += 1
        self._producer.flush()

    def counts(self) -> list[bytes]:
        parts = self._client.read(f"{self._application}-counts", COMMITTED, 3)
        return [value for part in parts for value in part]

    def wait(self) -> None:
        """Wait until each word is counted once."""
        eventually(lambda: len(self.counts()) >= self.written.total(), "all counts", interval=0.2)
        found = self.counts()
        for word, number in self.written.items():
            assert [each for each in found if each.split()[0] == word] == [
                b"%s %d" % (word, count) for count in range(1, number + 1)
            ]

    def close(self) -> None:
        self._client.close()
