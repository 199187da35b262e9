"""Dead letters: what their headers say, which of them a command selects, and how they are sent back.

A redrive keeps its progress in a group's committed offsets, in transactions.
"""

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple

from kbroker.cli.common.client import client_settings, topic_error_text
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.config import dead_letter_headers as names
from kbroker.retry.records import is_pointer, last_headers, redriven_headers
from protocol.errors import ErrorCode


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
POLL_MS = 500
ORIGINAL_TIMEOUT_S = 30
_NULL = object()


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
        bootstrap: str,
        topic: str,
        selection: LetterFilter,
        target: str | None,
        relative_times: tuple[str | None, str | None] = (None, None),
        sources: Mapping[str, str] | None = None,
    ) -> None:
        """`sources`: those of the cluster's views, by view. Raises CliError if the target is a view."""
        from kafka import KafkaConsumer, TopicPartition

        self._sources = sources or {}
        if target is not None:
            self._check_not_view(target)
        self.group = redrive_group(topic, selection, target, relative_times)
        # The time until which the next run selects is a later one, so the progress must not pass it.
        self._stop_ms = None if relative_times[1] is None else selection.until_ms
        self._settings = client_settings(bootstrap)
        self._originals = OriginalReader(self._settings)
        self._selection = selection
        self._target = target
        self._consumer = KafkaConsumer(
            **self._settings,
            group_id=self.group,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="earliest",
        )
        partitions = self._consumer.partitions_for_topic(topic)
        if not partitions:
            raise CliError(topic_error_text(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        self._partitions = [TopicPartition(topic, index) for index in sorted(partitions)]

    def run(self, *, rate: int | None, again: bool, dry_run: bool, progress: Callable[[int], None]) -> Counter[str]:
        """Send the records, at most `rate` a second; with `again` from the first record, whatever was sent before.

        Returns the numbers of records by what became of them.
        """
        counts = Counter[str]()
        producer = None if dry_run else _open_producer(self._settings, self.group)
        started = time.monotonic()
        try:
            if producer is not None:
                # Before the progress is read: this aborts what an interrupted redrive has left open. Until then its
                # progress is unstable, and cannot be read before the transaction expires.
                producer.init_transactions()
            ends = self._start(again)
            while any(self._consumer.position(tp) < end for tp, end in ends.items()):
                polled = self._consumer.poll(POLL_MS, max_records=min(BATCH_RECORDS, rate or BATCH_RECORDS))
                records = [record for tp, batch in polled.items() for record in batch if record.offset < ends[tp]]
                outgoing = self._select(records, counts)
                if producer is not None and records:
                    self._send(producer, outgoing, records)
                progress(len(records))
                if rate is not None and not dry_run:
                    time.sleep(max(0.0, started + counts[SENT] / rate - time.monotonic()))
        finally:
            if producer is not None:
                producer.close()
            self._consumer.close()
            self._originals.close()
        return counts

    def _start(self, again: bool) -> dict[Any, int]:
        """Seek to the progress, and return the offsets to stop at: the current ends, or those of a relative time."""
        self._consumer.assign(self._partitions)
        begins = self._consumer.beginning_offsets(self._partitions)
        for tp in self._partitions:
            committed = None if again else self._consumer.committed(tp)
            self._consumer.seek(tp, max(begins[tp], committed or 0))
        ends: dict[Any, int] = self._consumer.end_offsets(self._partitions)
        if self._stop_ms is not None:
            stops = self._consumer.offsets_for_times(dict.fromkeys(self._partitions, self._stop_ms))
            ends.update({tp: min(ends[tp], stop.offset) for tp, stop in stops.items() if stop is not None})
        return ends

    def _select(self, records: list[Any], counts: Counter[str]) -> list[tuple[str, Any]]:
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

    def _send(self, producer: Any, outgoing: list[tuple[str, Any]], records: list[Any]) -> None:
        """Send a batch, and the offsets behind `records`, in one transaction."""
        from kafka import OffsetAndMetadata, TopicPartition

        from kbroker.retry.clients.kafka_python import producer_headers

        for target in {target for target, _ in outgoing}:
            if not self._consumer.partitions_for_topic(target):
                raise CliError(topic_error_text(target, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        next_offsets = {
            TopicPartition(record.topic, record.partition): OffsetAndMetadata(record.offset + 1, "", -1)
            for record in records
        }
        producer.begin_transaction()
        futures = []
        for target, record in outgoing:
            headers = producer_headers(redriven_headers(tuple(record.headers)))
            value = _NULL if record.value is None else record.value
            futures.append(producer.send(target, value, record.key, headers))
        producer.flush()
        for future in futures:
            future.get(0)
        producer.send_offsets_to_transaction(next_offsets, self._consumer.group_metadata())
        producer.commit_transaction()


class OriginalReader:
    """Reads the records that pointers name. One poll returns those of many pointers, which are usually in order."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._consumer: Any = None
        # What was polled last, by offset, and from where.
        self._polled: dict[int, Any] = {}
        self._position: tuple[Any, int] = (None, 0)

    def read(self, letter: DeadLetter) -> Any:
        """Return the record that a pointer names; None if it is gone. Raises CliError."""
        from kafka import KafkaConsumer, TopicPartition

        partition, offset = letter.partition or "", letter.offset or ""
        if letter.topic is None or not partition.isdecimal() or not offset.isdecimal():
            return None
        if self._consumer is None:
            self._consumer = KafkaConsumer(**self._settings, auto_offset_reset="earliest")
        tp, wanted = TopicPartition(letter.topic, int(partition)), int(offset)
        polled_tp, first = self._position
        if tp != polled_tp or not first <= wanted <= max(self._polled, default=-1):
            self._poll(tp, wanted)
        return self._polled.get(wanted)

    def _poll(self, tp: Any, wanted: int) -> None:
        """Read from an offset on, if it still exists."""
        consumer = self._consumer
        self._polled, self._position = {}, (tp, wanted)
        if tp.partition not in (consumer.partitions_for_topic(tp.topic) or ()):
            return
        consumer.assign([tp])
        if not consumer.beginning_offsets([tp])[tp] <= wanted < consumer.end_offsets([tp])[tp]:
            return
        consumer.seek(tp, wanted)
        deadline = time.monotonic() + ORIGINAL_TIMEOUT_S
        while consumer.position(tp) <= wanted:
            self._polled = {record.offset: record for record in consumer.poll(POLL_MS).get(tp, ())}
            if not self._polled and time.monotonic() >= deadline:
                raise CliError(f"{tp.topic}-{tp.partition} offset {wanted} was not read within {ORIGINAL_TIMEOUT_S} s")

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


def _open_producer(settings: dict[str, Any], transactional_id: str) -> Any:
    from kafka import KafkaProducer
    from kafka.serializer import Serializer

    class NullSerializer(Serializer):  # type: ignore[misc]
        """Serializes _NULL as null, since `send` refuses None as the value of a record without a key."""

        def serialize(self, topic: str, headers: Any, data: Any) -> bytes | None:
            return None if data is _NULL else data

    return KafkaProducer(**settings, transactional_id=transactional_id, value_serializer=NullSerializer())
