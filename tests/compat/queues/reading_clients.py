"""Clients whose readers are tested in the stories of queues: confluent-kafka produces for them.

They handle no transactions: kafka-go passes the record of each transaction marker to the application, and rskafka
fails at it, also with Apache Kafka. So records of a transaction that is committed are sent without one, and those of an
aborted one are not sent.
"""

import json
import queue
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from tests.compat.queues.clients import Got, Reader, Sent
from tests.compat.queues.confluent_client import ConfluentKafka
from tests.compat.queues.program_clients import ProgramClient
from tests.compat.support import DEADLINE_S
from tests.compat.toolchains import go_program, rust_program

PROGRAMS = Path(__file__).parent / "programs"


def queue_program(directory: Path) -> Path:
    """Build the program with franz-go and kafka-go."""
    return go_program(PROGRAMS / "go", directory / "queue-program")


def rskafka_program() -> Path:
    return rust_program("rskafka_reader")


class ReadingClient:
    """`open_reader`: called with a topic, a group and read_committed."""

    commits_position = False

    def __init__(self, bootstrap: str, open_reader: Callable[[str, str, bool], Reader], commits: bool) -> None:
        self.commits = commits
        self._producer = ConfluentKafka(bootstrap)
        self._open_reader = open_reader

    def produce(self, topic: str, records: Sequence[Sent]) -> list[int]:
        return self._producer.produce(topic, records)

    def transaction(self, topic: str, records: Sequence[Sent], commit: bool) -> None:
        if commit:
            self.produce(topic, records)

    def reader(self, topic: str, group: str, read_committed: bool = False) -> Reader:
        return self._open_reader(topic, group, read_committed)

    def close(self) -> None:
        self._producer.close()


def kafka_go(program: Path, bootstrap: str, in_group: bool) -> ReadingClient:
    return ReadingClient(bootstrap, ProgramClient([program, "kafka-go", bootstrap], commits=in_group).reader, in_group)


def rskafka(program: Path, bootstrap: str) -> ReadingClient:
    return ReadingClient(bootstrap, lambda topic, *_: RskafkaReader(program, bootstrap, topic), False)


class RskafkaReader:
    """A stream of rskafka, which has no groups, and always reads committed records."""

    def __init__(self, program: Path, bootstrap: str, topic: str, partition: int = 0) -> None:
        self._command = [str(program), bootstrap, topic, str(partition)]
        self._bootstrap, self._partition = bootstrap, TopicPartition(topic, partition)
        self.seek(0)

    def seek(self, offset: int) -> None:
        if hasattr(self, "_process"):
            self.close()
        self._process = subprocess.Popen([*self._command, str(offset)], stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_read_lines, args=(self._process, self._lines), daemon=True).start()

    def seek_to_time(self, timestamp_ms: int) -> None:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "group.id": "none"})
        times = [TopicPartition(self._partition.topic, self._partition.partition, timestamp_ms)]
        [found] = consumer.offsets_for_times(times, DEADLINE_S)
        consumer.close()
        self.seek(found.offset)

    def poll(self) -> list[Got]:
        got: list[Got] = []
        try:
            line = self._lines.get(timeout=0.5)
            while True:
                read = json.loads(line)
                assert "error" not in read, read["error"]
                got.append(Got(read["offset"], read["timestamp"], read["value"], dict(map(tuple, read["headers"]))))
                line = self._lines.get_nowait()
        except queue.Empty:
            return got

    def position(self) -> None:
        return None

    def close(self) -> None:
        self._process.kill()
        self._process.wait(DEADLINE_S)


def _read_lines(process: "subprocess.Popen[str]", lines: "queue.Queue[str]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(json.dumps({"error": "the program has ended"}))
