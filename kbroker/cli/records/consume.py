"""`kbroker consume`: records of topics, to the end or as they come, alone or as a member of a group."""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Annotated, Any, NamedTuple

import typer

from kbroker.cli.common.client import client_errors, client_settings
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap
from kbroker.cli.common.parsing import INT32, Position, parse_position
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.records.formats import to_json, to_plain, to_terminal

POLL_MS = 500
MAX_POLL_RECORDS = 5000
COMMIT_EVERY_MS = 1000
COMMIT_TIMEOUT_MS = 5000
FETCH_BYTES = 4 << 20
MAX_BATCH_BYTES = 256 << 20

Offsets = dict[Any, int]  # by kafka.TopicPartition


def consume(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC", show_default=False, autocompletion=complete_topics)],
    partition: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, max=INT32, help="Only this one; repeat for more.")
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="PLACE",
            show_default="earliest",
            help="earliest, latest, an offset, -N (the last N), @TIME.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="Stop before it.", show_default="the end as of now"),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after so many records.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end, until Ctrl-C.")] = False,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Join a group: start from its offsets, commit what is printed.",
            autocompletion=complete_groups,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object a line, with everything that a record has.")
    ] = False,
    key_separator: Annotated[
        str | None, typer.Option("--key-separator", "-K", metavar="SEP", help="Print KEY SEP VALUE.")
    ] = None,
    values: Annotated[bool, typer.Option("--values", help="Values only, on a terminal too.")] = False,
    read_committed: Annotated[
        bool, typer.Option("--read-committed", help="Leave out records of open and aborted transactions.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print records: everything that is there now, and with --follow what comes.

    In a pipe a record is its value and a line end. --json loses nothing; `kbroker produce --json` reads it.
    TIME is ISO 8601, milliseconds since the epoch, or as 15m: so long ago.
    """
    now_ms = round(time.time() * 1000)
    start = parse_position(from_, now_ms) if from_ is not None else Position("earliest")
    stop = parse_position(to, now_ms) if to is not None else None
    if group is not None and (partition or stop is not None or start.kind not in ("earliest", "latest")):
        raise usage_error(
            "with --group the group decides where to read: "
            "no --partition, no --to, and --from only as earliest or latest"
        )
    stop_signals = StopSignals()
    settings = {
        "group_id": group,
        "auto_offset_reset": start.kind if group is not None else "earliest",
        "enable_auto_commit": group is not None,
        "auto_commit_interval_ms": COMMIT_EVERY_MS,
        "isolation_level": "read_committed" if read_committed else "read_uncommitted",
        "allow_auto_create_topics": False,
        "max_poll_records": MAX_POLL_RECORDS,
        "max_partition_fetch_bytes": FETCH_BYTES,
        "metrics_enabled": False,
        "exclude_internal_topics": False,
    }
    separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode()
    printer = Printer(as_json=as_json, separator=separator, pretty=not values and sys.stdout.isatty())
    try:
        with _consumer(client_settings(bootstrap) | settings) as consumer:
            known = _partitions(consumer, topics, partition)
            if group is not None:
                _consume_as_member(consumer, topics, printer, count, follow, stop_signals)
            else:
                begin, end = _span(consumer, known, start, stop, follow)
                _consume_alone(consumer, begin, end, printer, count, stop_signals)
    except KeyboardInterrupt:
        if not follow:
            raise


class StopSignals:
    """SIGINT and SIGTERM. One that comes during a poll is heeded after it, for kafka-python may lose an exception that
    is raised in the midst of its work; the second one is heeded at once."""

    def __init__(self) -> None:
        self._wait = False
        self._seen = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._wait and not self._seen:
            self._seen = True
            return
        raise KeyboardInterrupt

    @contextmanager
    def later(self) -> Iterator[None]:
        self._wait = True
        try:
            yield
        finally:
            self._wait = False
        if self._seen:
            raise KeyboardInterrupt


@contextmanager
def _consumer(config: dict[str, Any]) -> Iterator[Any]:
    """A KafkaConsumer that is closed at the end, with its failures told in words."""
    from kafka import KafkaConsumer, codec

    # kafka-python's own limit is 1 MiB, and it refuses larger batches where the frame does not tell its size
    codec.ZSTD_MAX_OUTPUT_SIZE = MAX_BATCH_BYTES
    with client_errors():
        client = KafkaConsumer(**config)
        try:
            yield client
        finally:
            client.close(autocommit=False)


class Printer:
    """Writes records to standard output, a poll's worth at a time."""

    def __init__(self, *, as_json: bool, separator: bytes | None, pretty: bool) -> None:
        self._as_json = as_json
        self._separator = separator
        self._pretty = pretty
        self._colors = pretty and "NO_COLOR" not in os.environ

    def line(self, record: Any) -> bytes:
        """One record without its line end."""
        if self._as_json:
            return to_json(record)
        if self._pretty:
            return to_terminal(record, self._colors)
        return to_plain(record, self._separator)

    def print(self, records: Iterable[Any]) -> None:
        """Written and flushed, so that what is committed afterwards has been seen."""
        out = sys.stdout.buffer
        unwritten = memoryview(b"".join(self.line(record) + b"\n" for record in records))
        while unwritten:
            # with PYTHONUNBUFFERED this is a bare write(2), which may take a part
            unwritten = unwritten[out.write(unwritten) :]
        out.flush()


class Span(NamedTuple):
    """Where to begin, and where to stop (exclusive; nothing there: never)."""

    begin: Offsets
    end: Offsets


def _partitions(consumer: Any, topics: list[str], chosen: list[int] | None) -> list[Any]:
    from kafka import TopicPartition

    found = []
    for topic in dict.fromkeys(topics):
        known = consumer.partitions_for_topic(topic)
        if not known:
            raise CliError(f"topic {topic} does not exist")
        for missing in sorted(set(chosen or ()) - known):
            raise CliError(f"topic {topic} has no partition {missing}: it has {len(known)}")
        found += [TopicPartition(topic, index) for index in sorted(chosen or known)]
    return found


def _span(consumer: Any, partitions: list[Any], start: Position, stop: Position | None, follow: bool) -> Span:
    first: Offsets = consumer.beginning_offsets(partitions)
    last: Offsets = consumer.end_offsets(partitions)

    def times(wanted: Position) -> dict[Any, int | None]:
        if wanted.kind != "time":
            return {}
        found = consumer.offsets_for_times(dict.fromkeys(partitions, wanted.value))
        return {tp: at.offset if at is not None else None for tp, at in found.items()}

    begin = resolve(start, first, last, times(start))
    if stop is not None:
        end = resolve(stop, first, last, times(stop), clamp_to_end=not follow)
        if follow and stop.kind == "time":
            end = {tp: offset for tp, offset in end.items() if offset < last[tp]}
    else:
        end = {} if follow else dict(last)
    return Span(begin, end)


def resolve(
    wanted: Position,
    first: Offsets,
    last: Offsets,
    times: Mapping[Any, int | None],
    *,
    clamp_to_end: bool = True,
) -> Offsets:
    """A place as an offset of each partition, within [first, last]; a time after all records is the end."""

    def at(tp: Any) -> int:
        if wanted.kind == "earliest":
            return first[tp]
        if wanted.kind == "last":
            return last[tp] - wanted.value
        if wanted.kind == "offset":
            return wanted.value
        found = times.get(tp)
        return last[tp] if found is None else found

    return {tp: max(first[tp], min(at(tp), last[tp]) if clamp_to_end else at(tp)) for tp in first}


def _consume_alone(
    consumer: Any, begin: Offsets, end: Offsets, printer: Printer, count: int | None, stop_signals: StopSignals
) -> None:
    waiting = {tp for tp in begin if tp not in end or begin[tp] < end[tp]}
    if not waiting:
        return
    consumer.assign(sorted(waiting))
    for tp in waiting:
        consumer.seek(tp, begin[tp])
    left = count
    with ProgressBar("consuming", _expected(begin, end, count, waiting), enabled=not sys.stdout.isatty()) as work:
        while waiting:
            with stop_signals.later():
                polled = consumer.poll(POLL_MS, max_records=_poll_size(left))
            records = [
                r
                for tp, batch in polled.items()
                for r in batch
                if tp in waiting and r.offset < end.get(tp, r.offset + 1)
            ]
            printer.print(records)
            work.advance(len(records))
            if left is not None and (left := left - len(records)) <= 0:
                return
            reached = {tp for tp in waiting if tp in end and consumer.position(tp) >= end[tp]}
            if reached:
                consumer.pause(*reached)
                waiting -= reached


def _expected(begin: Offsets, end: Offsets, count: int | None, waiting: set[Any]) -> int | None:
    if not all(tp in end for tp in waiting):
        return count
    total = sum(end[tp] - begin[tp] for tp in waiting)
    return total if count is None else min(count, total)


def _poll_size(left: int | None) -> int:
    return MAX_POLL_RECORDS if left is None else min(left, MAX_POLL_RECORDS)


def _consume_as_member(
    consumer: Any, topics: list[str], printer: Printer, count: int | None, follow: bool, stop_signals: StopSignals
) -> None:
    """Print, then commit: after a failure a record may be printed twice, and none is left out.

    A poll gives no more than may be printed, and commits (each second, and before a rebalance) what the polls
    before it gave; so what is committed has been printed.
    """
    assigned = _subscribe(consumer, topics)
    ends: Offsets = {}
    printed: Offsets = {}
    left = count
    try:
        while left is None or left > 0:
            with stop_signals.later():
                polled = consumer.poll(POLL_MS, max_records=_poll_size(left))
            for tp, batch in polled.items():
                printer.print(batch)
                printed[tp] = batch[-1].offset + 1
                left = None if left is None else left - len(batch)
            if not follow and assigned and _all_read(consumer, ends):
                break
    except BaseException:
        _commit_printed(consumer, printed)
        raise
    consumer.commit()


def _subscribe(consumer: Any, topics: list[str]) -> list[bool]:
    """The list is filled when the first assignment has come, which may be of no partitions at all."""
    from kafka import ConsumerRebalanceListener

    assigned: list[bool] = []

    class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
        def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        def on_partitions_assigned(self, added: Any) -> None:
            assigned.append(True)

    consumer.subscribe(topics, listener=Listener())
    return assigned


def _all_read(consumer: Any, ends: Offsets) -> bool:
    """Whether this member has come to the end of its partitions, as it was when it got them."""
    mine = consumer.assignment()
    if unknown := [tp for tp in mine if tp not in ends]:
        ends.update(consumer.end_offsets(unknown))
    return all(consumer.position(tp) >= ends[tp] for tp in mine)


def _commit_printed(consumer: Any, printed: Offsets) -> None:
    from kafka import OffsetAndMetadata

    mine = consumer.assignment()
    offsets = {tp: OffsetAndMetadata(offset, "", -1) for tp, offset in printed.items() if tp in mine}
    if offsets:
        with suppress(Exception):  # there is a failure to tell already
            consumer.commit(offsets, timeout_ms=COMMIT_TIMEOUT_MS)
