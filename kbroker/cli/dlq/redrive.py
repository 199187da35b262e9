"""Dead letters: what their headers say, which of them a command selects, and how they are sent back.

A redrive keeps its progress in a group's committed offsets, in transactions.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

from kbroker.cli.common.client import partition_leaders
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.client.admin import describe_topics
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.groups import committed_offsets
from kbroker.client.offsets import EARLIEST, LATEST, READ_COMMITTED, list_offsets
from kbroker.client.transactions import BlockingTransactionalProducer
from kbroker.common import TopicPartition
from kbroker.config import dead_letter_headers as names
from kbroker.retry.records import is_pointer, last_headers, redriven_headers


class DeadLetter(NamedTuple):
    """The headers of a dead letter; None where one is missing, since anybody may produce to the topic.

    `omitted`: the parts that a pointer to the failed record lacks, separated by commas.
    """

    topic: str | None
    partition: str | None
    offset: str | None
    group: str | None
    attempts: str | None
    error: str | None
    message: str | None
    omitted: str | None


_HEADERS = (
    names.TOPIC, names.PARTITION, names.OFFSET, names.GROUP, names.DELIVERY_COUNT, names.ERROR_CLASS, names.MESSAGE,
    names.OMITTED,
)  # fmt: skip


def dead_letter(headers: Sequence[tuple[str, bytes | None]]) -> DeadLetter:
    """Return what the headers of a record say."""
    values = last_headers(headers)
    return DeadLetter(*(values[name].decode("utf-8", "replace") if name in values else None for name in _HEADERS))


@dataclass(frozen=True)
class LetterFilter:
    """The selected dead letters. Each condition that is set must hold; times are milliseconds since the epoch.

    `error` is a class, with or without its module. `headers` are (name, value or None for any value, also null); one
    of several headers with the same name is enough.
    """

    topic: str | None = None
    group: str | None = None
    error: str | None = None
    from_ms: int | None = None
    until_ms: int | None = None
    headers: tuple[tuple[str, str | None], ...] = ()

    def selects(self, headers: Sequence[tuple[str, bytes | None]], timestamp_ms: int) -> bool:
        letter = dead_letter(headers)
        error = letter.error or ""
        return (
            self.topic in (None, letter.topic)
            and self.group in (None, letter.group)
            and self.error in (None, error, error.rpartition(".")[2])
            and (self.from_ms is None or timestamp_ms >= self.from_ms)
            and (self.until_ms is None or timestamp_ms < self.until_ms)
            and all(
                any(key == name and (value is None or data == value.encode()) for key, data in headers)
                for name, value in self.headers
            )
        )


def parse_header_filters(texts: Sequence[str]) -> tuple[tuple[str, str | None], ...]:
    """Parse `NAME` or `NAME=VALUE` texts. Raises CliError without a name."""
    parts = [text.partition("=") for text in texts]
    if not all(name for name, _, _ in parts):
        raise usage_error("--header needs the name of a header: NAME or NAME=VALUE")
    return tuple((name, value if sign else None) for name, sign, value in parts)


def redrive_group(
    topic: str,
    selection: LetterFilter,
    target: str | None,
    relative_times: tuple[str | None, str | None] = (None, None),
) -> str:
    """Return the group that keeps the progress of a redrive: the same for the same selection and target.

    `relative_times`: from and until as durations before now, which are another time with each run of a command.
    """
    if relative_times[0] is not None:
        selection = replace(selection, from_ms=None)
    if relative_times[1] is not None:
        selection = replace(selection, until_ms=None)
    options: tuple[Any, ...] = (*astuple(selection), target)
    if any(relative_times):
        options = (*options, *relative_times)
    if all(option in (None, ()) for option in options):
        return f"kbroker-redrive-{topic}"
    return f"kbroker-redrive-{topic}-{hashlib.sha256(repr(options).encode()).hexdigest()[:8]}"


BATCH_RECORDS = 500
ORIGINAL_TIMEOUT_S = 30


# What becomes of dead letters: they are sent, not selected, or have no topic or record (a pointer) to send.
SENT, SKIPPED, WITHOUT_TOPIC, WITHOUT_ORIGINAL = "sent", "skipped", "without topic", "without original"


class Redrive:
    """A redrive of a dead-letter topic, from its progress up to the end at its start.

    Each batch of records and the offsets behind it are committed in one transaction. So an interrupted redrive
    continues where it stopped, and readers with read_committed see each record once. The transactional id is the name
    of the group: a second redrive with the same selection fences the first.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        topic: str,
        selection: LetterFilter,
        target: str | None,
        relative_times: tuple[str | None, str | None] = (None, None),
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """`sources`: those of the cluster's views, by view. Raises CliError if the target is a view."""
        self._sources = sources or {}
        if target is not None:
            self._check_not_view(target)
        self.group = redrive_group(topic, selection, target, relative_times)
        # The time until which the next run selects is a later one, so the progress must not pass it.
        self._stop_ms = None if relative_times[1] is None else selection.until_ms
        self._cluster = cluster
        self._originals = OriginalReader(cluster)
        self._selection = selection
        self._target = target
        self._consumer = PartitionConsumer(cluster, {}, isolation_level=READ_COMMITTED)
        self._partitions = [TopicPartition(*each) for each in sorted(partition_leaders(cluster, [topic]))]

    def run(self, *, rate: int | None, again: bool, dry_run: bool, progress: Callable[[int], None]) -> Counter[str]:
        """Send the records, at most `rate` a second; with `again` from the first record, whatever was sent before.

        Returns the numbers of records by what became of them.
        """
        counts = Counter[str]()
        # Before the progress is read: this aborts what an interrupted redrive has left open. Until then its progress
        # is unstable.
        producer = None if dry_run else BlockingTransactionalProducer(self._cluster, self.group)
        started = time.monotonic()
        ends = self._start(again)
        while any(self._consumer.positions[tp] < end for tp, end in ends.items()):
            polled = self._consumer.poll(min(BATCH_RECORDS, rate or BATCH_RECORDS))
            records = [record for record in polled if record.offset < ends[record.topic_partition]]
            outgoing = self._select(records, counts)
            if producer is not None and records:
                self._send(producer, outgoing, records)
            progress(len(records))
            if rate is not None and not dry_run:
                time.sleep(max(0.0, started + counts[SENT] / rate - time.monotonic()))
        return counts

    def _start(self, again: bool) -> dict[TopicPartition, int]:
        """Seek to the progress, and return the offsets to stop at: the current ends, or those of a relative time."""
        begins = list_offsets(self._cluster, dict.fromkeys(self._partitions, EARLIEST))
        committed = {} if again else committed_offsets(self._cluster, self.group)
        self._consumer.seek({tp: max(begin, committed.get(tp, 0)) for tp, begin in begins.items()})
        ends = list_offsets(self._cluster, dict.fromkeys(self._partitions, LATEST), READ_COMMITTED)
        if self._stop_ms is not None:
            stops = list_offsets(self._cluster, dict.fromkeys(self._partitions, self._stop_ms))
            ends.update({tp: min(ends[tp], stop) for tp, stop in stops.items() if stop >= 0})
        return ends

    def _select(self, records: list[ConsumedRecord], counts: Counter[str]) -> list[tuple[str, ConsumedRecord]]:
        """Return what to send where, and count."""
        outgoing = []
        for record in records:
            letter = dead_letter(record.headers)
            target = self._target or letter.topic
            if not self._selection.selects(record.headers, record.timestamp):
                counts[SKIPPED] += 1
                continue
            if target is None:
                counts[WITHOUT_TOPIC] += 1
                continue
            original = self._originals.read(letter) if is_pointer(record.headers) else record
            if original is None:
                counts[WITHOUT_ORIGINAL] += 1
                continue
            self._check_not_view(target)
            outgoing.append((target, original))
            counts[SENT] += 1
        return outgoing

    def _check_not_view(self, target: str) -> None:
        """Raise CliError for a view: brokers refuse it in a transaction with an error that does not say why."""
        source = self._sources.get(target)
        if source is not None:
            raise CliError(f"topic {target} is a view without records of its own: use its source with --to {source}")

    def _send(
        self,
        producer: BlockingTransactionalProducer,
        outgoing: list[tuple[str, ConsumedRecord]],
        records: list[ConsumedRecord],
    ) -> None:
        """Send a batch, and the offsets behind `records`, in one transaction."""
        partition_leaders(self._cluster, sorted({target for target, _ in outgoing}))  # raises for a missing one
        for target, record in outgoing:
            producer.add(target, record.key, record.value, redriven_headers(record.headers))
        producer.commit(self.group, {record.topic_partition: record.offset + 1 for record in records})


class OriginalReader:
    """Reads the records that pointers name. One poll returns those of many pointers, which are usually in order."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster
        self._consumer = PartitionConsumer(cluster, {})
        # What was polled last, by offset, and from where.
        self._polled: dict[int, ConsumedRecord] = {}
        self._position: tuple[TopicPartition | None, int] = (None, 0)

    def read(self, letter: DeadLetter) -> ConsumedRecord | None:
        """Return the record that a pointer names; None if it is gone. Raises CliError."""
        partition, offset = letter.partition or "", letter.offset or ""
        if letter.topic is None or not partition.isdecimal() or not offset.isdecimal():
            return None
        tp, wanted = TopicPartition(letter.topic, int(partition)), int(offset)
        polled_tp, first = self._position
        if tp != polled_tp or not first <= wanted <= max(self._polled, default=-1):
            self._poll(tp, wanted)
        return self._polled.get(wanted)

    def _poll(self, tp: TopicPartition, wanted: int) -> None:
        """Read from an offset on, if it still exists."""
        self._polled, self._position = {}, (tp, wanted)
        [topic] = describe_topics(self._cluster, [tp.topic])
        if tp.partition not in [row.partition_index for row in topic.partitions]:
            return
        begin = list_offsets(self._cluster, {tp: EARLIEST})[tp]
        if not begin <= wanted < list_offsets(self._cluster, {tp: LATEST})[tp]:
            return
        self._consumer.seek({tp: wanted})
        deadline = time.monotonic() + ORIGINAL_TIMEOUT_S
        while self._consumer.positions[tp] <= wanted:
            self._polled = {record.offset: record for record in self._consumer.poll(BATCH_RECORDS)}
            if not self._polled and time.monotonic() >= deadline:
                raise CliError(f"{tp} offset {wanted} was not read within {ORIGINAL_TIMEOUT_S} s")
