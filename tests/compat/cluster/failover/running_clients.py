"""The programs in programs/ as processes, and what they have sent, read and complained about."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.compat.java_programs import classpath_of, java_command
from tests.compat.support import DEADLINE_S, eventually, unique

PROGRAMS = Path(__file__).with_name("programs")
PARTITIONS = 3


class Kind(NamedTuple):
    """A client library. `has_defaults`: whether its default settings differ from those of an idempotent producer."""

    name: str
    command: Sequence[str]
    has_defaults: bool
    # What its default settings promise: an acknowledged record is on all in-sync replicas.
    default_acks_all: bool = True


def kinds() -> list[Kind]:
    """Return the client libraries that this machine can run."""

    def python(program: str) -> list[str]:
        return [sys.executable, str(PROGRAMS / program)]

    found = [
        Kind("confluent-kafka", python("confluent_program.py"), True),
        Kind("kafka-python", python("kafka_python_program.py"), False),
        Kind("aiokafka", python("aiokafka_program.py"), True, default_acks_all=False),
    ]
    if shutil.which("java") and shutil.which("mvn"):
        program = PROGRAMS / "FailoverClient.java"
        found.append(Kind("Java", java_command("FailoverClient", classpath_of(program)), False))
    return found


class Client:
    """A running program."""

    def __init__(self, kind: Kind, directory: Path) -> None:
        self.kind = kind
        self.group = unique(f"group-{kind.name}")
        self.topic = unique(f"idempotent-{kind.name}")
        self.topics = [self.topic, *([unique(f"defaults-{kind.name}")] if kind.has_defaults else [])]
        # By topic: the acknowledged offset of each number, and the numbers that are read, by partition and offset.
        self.acknowledged: dict[str, dict[int, tuple[int, int]]] = {topic: {} for topic in self.topics}
        self.read: dict[str, dict[tuple[int, int], int]] = {topic: {} for topic in self.topics}
        self.sent: dict[str, int] = {}
        self.commits = 0
        self.errors: list[str] = []
        self._output = directory / f"{kind.name}.output"
        self._stderr = directory / f"{kind.name}.errors"
        self._position = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, bootstrap: str) -> None:
        command = [*self.kind.command, bootstrap, self.group, str(PARTITIONS), *self.topics]
        with self._output.open("wb") as output, self._stderr.open("wb") as errors:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=errors)

    def refresh(self) -> None:
        """Read what the program has written since the last call. Fails if it has shown an error, or has ended."""
        with self._output.open("rb") as output:
            output.seek(self._position)
            written = output.read()
        complete = written[: written.rfind(b"\n") + 1]
        self._position += len(complete)
        for line in complete.decode().splitlines():
            self._take(line.split())
        assert self.errors == [], f"{self.kind.name} has shown its user: {self.errors[:5]}"
        code = self._process.poll() if self._process is not None else None
        assert code is None, f"{self.kind.name} has ended with {code}: {self._stderr.read_text()[-3000:]}"

    def progress(self) -> list[int]:
        """Return counts that grow while everything works: acknowledgements and reads by partition, and commits."""
        counts = [self.commits]
        for topic in self.topics:
            for places in ([place for place, _ in self.acknowledged[topic].values()], [p for p, _ in self.read[topic]]):
                counts += [places.count(partition) for partition in range(PARTITIONS)]
        return counts

    def stop_producing(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"stop\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        """End the consumer. The program must end by itself."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0, f"{self.kind.name}: {self._stderr.read_text()[-3000:]}"
        self.refresh()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            with suppress(OSError):
                assert self._process.stdin is not None
                self._process.stdin.close()

    def _take(self, words: list[str]) -> None:
        match words:
            case ["ack", topic, partition, offset, number]:
                assert int(number) not in self.acknowledged[topic], f"{self.kind.name}: {number} is acknowledged twice"
                self.acknowledged[topic][int(number)] = int(partition), int(offset)
            case ["read", topic, partition, offset, number]:
                self.read[topic][int(partition), int(offset)] = int(number)
            case ["sent", topic, count]:
                self.sent[topic] = int(count)
            case ["commit"]:
                self.commits += 1
            case _:
                self.errors.append(" ".join(words))


class Clients:
    """All client libraries at the same time."""

    def __init__(self, directory: Path) -> None:
        self.all = [Client(kind, directory) for kind in kinds()]

    @property
    def topics(self) -> list[str]:
        return [topic for client in self.all for topic in client.topics]

    def start(self, bootstrap: str) -> None:
        for client in self.all:
            client.start(bootstrap)

    def refresh(self) -> None:
        for client in self.all:
            client.refresh()

    def wait_for_more(self, count: int = 3) -> None:
        """Wait until every partition of each client has `count` more acknowledged and read records, and a commit."""
        self.refresh()
        start = {client.kind.name: client.progress() for client in self.all}

        def lagging() -> list[str]:
            self.refresh()
            return [
                f"{client.kind.name}: {client.progress()} after {start[client.kind.name]}"
                for client in self.all
                if not all(
                    now >= before + (count if index else 1)
                    for index, (now, before) in enumerate(zip(client.progress(), start[client.kind.name], strict=True))
                )
            ]

        state: list[str] = []

        def has_more() -> bool:
            state[:] = lagging()
            return not state

        try:
            eventually(has_more, "progress of every client", interval=0.1)
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *state])) from error

    def stop(self) -> None:
        """Stop the producers, and the consumers after they have read everything."""
        for client in self.all:
            client.stop_producing()
        for client in self.all:
            eventually(
                lambda client=client: client.refresh() or len(client.sent) == len(client.topics),
                f"{client.kind.name}: every record is acknowledged",
                interval=0.1,
            )

    def wait_until_read(self, ends: dict[str, list[int]]) -> None:
        """Wait until each consumer has read its topics up to these offsets, by partition."""
        for client in self.all:
            for topic in client.topics:
                eventually(
                    lambda client=client, topic=topic: client.refresh() or len(client.read[topic]) >= sum(ends[topic]),
                    f"{client.kind.name} reads {sum(ends[topic])} records",
                    interval=0.1,
                    progress=lambda client=client, topic=topic: len(client.read[topic]),
                )
        for client in self.all:
            client.stop()

    def kill(self) -> None:
        for client in self.all:
            client.kill()
