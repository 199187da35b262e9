"""Killing a broker while producers wait for it, and what must be true of the log at the end."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.compat.crash.line import Line, Unanswered, find
from tests.compat.crash.writers import VALUE, Ledger, Record, Writer
from tests.compat.support import DEADLINE_S, BrokerProcess, eventually

# Of a batch's header: base offset, size of what follows, offset of the last record from the base offset.
_BATCH = Struct(">qi11xi")

# Ways to kill a broker while produce requests are unanswered. It stops where it is, and dies when such requests are
# seen to be there.
FROZEN = "frozen"
# Answers that had left it before may still be under way: the requests must be seen unanswered so many times in a row.
STEADY = 50
# It answers whatever the clients send ahead, but they never get these answers.
HELD = "answers held"
# The same, and then it has written checkpoints and snapshots, too.
CHECKPOINTED = "answers held, checkpoints written"


@dataclass
class Kill:
    """What was on its way when the broker was killed."""

    how: str
    unanswered: Unanswered
    records: int  # in these requests
    in_log: int  # of these records
    outstanding: int
    client: str

    def __str__(self) -> str:
        return (
            f"{self.how}: {self.unanswered.requests} produce requests unanswered, with {self.unanswered.batches} "
            f"batches of {self.records} records, {self.in_log} of these in the log already; {self.outstanding} records "
            f"not acknowledged; client: {self.client}"
        )


@dataclass
class Killer:
    """Kills and restarts one broker, and keeps count."""

    broker: BrokerProcess
    line: Line
    kills: list[Kill] = field(default_factory=list)
    repairs: list[str] = field(default_factory=list)

    def kill(self, writer: Writer, topic: str, how: str) -> None:
        """kill -9 while produce requests are unanswered."""
        ledger = writer.ledger
        try:
            self._catch(writer, topic, how)
            client = writer.in_flight()
            self.broker.kill()
            eventually(lambda: not self.line.connections(), "the end of the dead broker's connections", interval=0.001)
        finally:
            self.line.release()
        unanswered = self.line.take_lost()
        sent = unanswered.find(VALUE)
        in_log = sent & self._in_log(topic, ledger.partitions)
        self.kills.append(Kill(how, unanswered, len(sent), len(in_log), ledger.outstanding, client))

    def _in_log(self, topic: str, partitions: int) -> set[tuple[bytes, ...]]:
        files = [path for index in range(partitions) for path in self.broker.partition_dir(topic, index).glob("*.log")]
        return {match.groups() for path in files for match in find(VALUE, path.read_bytes())}

    def _catch(self, writer: Writer, topic: str, how: str) -> None:
        if how == FROZEN:
            self.broker.freeze()
            seen = 0

            def waiting() -> bool:
                nonlocal seen
                seen = seen + 1 if self.line.unanswered() else 0
                return seen >= STEADY

            eventually(waiting, "produce requests at a broker that does nothing", interval=0.001)
            return
        self.line.hold()
        eventually(
            lambda: writer.pipeline <= self.line.unanswered() == self.line.held(), "held answers", interval=0.001
        )
        if how == CHECKPOINTED:
            partitions = range(writer.ledger.partitions)
            eventually(lambda: all(self.checkpointed(topic, index) for index in partitions), "checkpoints")

    def checkpointed(self, topic: str, partition: int) -> bool:
        """Whether all that is in the log of the partition lies below its recovery point."""
        try:
            points = (self.broker.data_dir / "recovery-point-offset-checkpoint").read_text()
        except FileNotFoundError:
            return False
        point = re.search(rf"^{topic} {partition} (\d+)$", points, re.MULTILINE)
        return point is not None and int(point[1]) >= log_end(self.broker.partition_dir(topic, partition))

    def start(self) -> None:
        self.broker.start()
        self.repairs += repaired(self.broker)


def log_end(directory: Path) -> int:
    """The offset after the last whole batch in the last segment that has one, 0 if there is none."""
    for path in sorted(directory.glob("*.log"), reverse=True):
        data = path.read_bytes()
        position, end = 0, None
        while position + _BATCH.size <= len(data):
            base_offset, size, last_delta = _BATCH.unpack_from(data, position)
            position += 12 + size
            if position <= len(data):
                end = base_offset + last_delta + 1
        if end is not None:
            return end
    return 0


def repaired(broker: BrokerProcess) -> list[str]:
    """What the latest start says that it repaired."""
    return [line for line in broker.errors.splitlines() if ": log repaired " in line]


def acknowledged_by_partition(ledger: Ledger) -> list[int]:
    counts = [0] * ledger.partitions
    for partition, _ in list(ledger.acknowledged):
        counts[partition] += 1
    return counts


def progress(writer: Writer, by: int) -> None:
    """Wait until `by` more records have been acknowledged in every partition."""
    targets = [count + by for count in acknowledged_by_partition(writer.ledger)]

    def reached() -> bool:
        counts = acknowledged_by_partition(writer.ledger)
        return all(count >= target for count, target in zip(counts, targets, strict=True))

    eventually(
        reached,
        f"{by} more records acknowledged in each partition",
        interval=0.01,
        progress=lambda: len(writer.ledger.acknowledged),
    )


Read = list[list[tuple[int, bytes | None, bytes]]]


def read_all(bootstrap: str, topic: str, partitions: int) -> Read:
    """Each partition's (offset, key, value) from its start to its end, in order."""
    return read_topics(bootstrap, {topic: partitions})[topic]


def read_topics(bootstrap: str, topics: dict[str, int]) -> dict[str, Read]:
    """As `read_all`, by topic; `topics`: with their counts of partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    asked = [TopicPartition(topic, index) for topic, count in topics.items() for index in range(count)]
    found: dict[str, Read] = {topic: [[] for _ in range(count)] for topic, count in topics.items()}
    try:
        bounds = [consumer.get_watermark_offsets(tp, timeout=DEADLINE_S) for tp in asked]
        starts = zip(asked, bounds, strict=True)
        consumer.assign([TopicPartition(tp.topic, tp.partition, low) for tp, (low, _) in starts])
        left = sum(high - low for low, high in bounds)

        def read() -> bool:
            nonlocal left
            for message in consumer.consume(1000, timeout=0.2):
                if message.error():
                    raise KafkaException(message.error())
                left -= 1
                part = found[message.topic()][message.partition()]
                part.append((message.offset(), message.key(), message.value()))
            return left <= 0

        eventually(read, f"{left} records of {', '.join(topics)}", interval=0, progress=lambda: left)
    finally:
        consumer.close()
    for tp, (low, high) in zip(asked, bounds, strict=True):
        offsets = [offset for offset, _, _ in found[tp.topic][tp.partition]]
        assert offsets == list(range(low, high)), f"offsets of {tp.topic}-{tp.partition} without gaps"
    return found


Found = dict[Record, list[int]]


def offsets_of(ledger: Ledger, records: Read) -> Found:
    """At which offsets each of a producer's values is."""
    found: Found = {}
    for partition, part in enumerate(records):
        for offset, key, value in part:
            match = VALUE.match(value)
            assert match is not None, f"a value that nobody wrote: {value!r}"
            if match[1] == ledger.name.encode():
                number = int(match[3])
                assert int(match[2]) == partition
                assert number < ledger.sent[partition]
                assert key == b"key-%d" % (number % 7)
                found.setdefault((partition, number), []).append(offset)
    return found


def check_nothing_lost(ledger: Ledger, found: Found) -> None:
    """Everything acknowledged is there, at the offset that was answered."""
    lost = [record for record in ledger.acknowledged if record not in found]
    assert lost == [], f"{len(lost)} acknowledged records are lost"
    moved = [r for r, offset in ledger.acknowledged.items() if offset is not None and offset not in found[r]]
    assert moved == [], f"{len(moved)} records are not at the offset that was acknowledged"


def check_exactly_once(ledger: Ledger, found: Found) -> None:
    """No value twice, acknowledged or not, and each partition in the order in which it was written."""
    check_nothing_lost(ledger, found)
    twice = {record: offsets for record, offsets in found.items() if len(offsets) > 1}
    assert twice == {}, f"{len(twice)} values are there more than once"
    for partition in range(ledger.partitions):
        order = sorted((offsets[0], record[1]) for record, offsets in found.items() if record[0] == partition)
        numbers = [number for _, number in order]
        assert numbers == sorted(numbers), f"partition {partition} is not in order"


Check = Callable[[Ledger, Found], None]
