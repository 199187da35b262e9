"""`kbroker dlq`: list dead-letter topics, show dead letters, send them back, delete them."""

import time
from collections.abc import Mapping
from typing import Annotated, NamedTuple

import typer

from kbroker.cli.common.client import admin_client, partition_leaders
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.deletion import DeletionOptions, DryRun, record_bounds
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, argument, option
from kbroker.cli.common.output import Cell, ProgressBar, paginated, print_note, print_rows, print_table, watchable
from kbroker.cli.common.stop_signals import SIGNALS, Interrupts
from kbroker.cli.common.values import INT32, count_text, format_timestamp, is_relative_time, parse_time_ms
from kbroker.cli.dlq.redrive import (
    SENT,
    SKIPPED,
    WITHOUT_ORIGINAL,
    WITHOUT_TOPIC,
    LetterFilter,
    OriginalReader,
    Redrive,
    dead_letter,
    parse_header_filters,
)
from kbroker.cli.records.formats import to_json
from kbroker.cli.records.polling import OffsetBounds, read_partitions
from kbroker.cli.retry import topics_with_configs
from kbroker.client.cluster import ClusterClient
from kbroker.client.consumer import ConsumedRecord, PartitionConsumer
from kbroker.client.offsets import READ_COMMITTED
from kbroker.client.requests import MAX_VERSIONS
from kbroker.client.transactions import LAST_VERSIONS
from kbroker.config.queue_configs import DEAD_LETTER_ENABLE, VIEW_OF
from kbroker.retry.records import is_pointer

app = typer.Typer()

DeadLetterTopic = Annotated[str, argument("TOPIC", "Dead-letter topic.", complete=complete_topics)]


class LetterSelection(NamedTuple):
    """Which dead letters a command is about."""

    source: Annotated[str | None, option("--topic -t TOPIC", "Only records that failed in this topic.")] = None
    group: Annotated[
        str | None,
        option("--group -g GROUP", "Only records that this group failed to process.", complete=complete_groups),
    ] = None
    error: Annotated[str | None, option("--error CLASS", "Only this exception, with or without its module.")] = None
    start: Annotated[str | None, option("--from TIME", "Only records that failed then or later.")] = None
    end: Annotated[str | None, option("--until TIME", "Only records that failed earlier.")] = None
    header: Annotated[
        list[str] | None, option("--header -H NAME[=VALUE]", "Only records with this header; repeatable.")
    ] = None

    def filter(self) -> LetterFilter:
        """Raises CliError."""
        now_ms = round(time.time() * 1000)
        start_ms, end_ms = (None if text is None else parse_time_ms(text, now_ms) for text in (self.start, self.end))
        headers = parse_header_filters(self.header or [])
        return LetterFilter(self.source, self.group, self.error, start_ms, end_ms, headers)

    def relative_times(self) -> tuple[str | None, str | None]:
        """Return the times that are durations before now; None for other times."""
        start, end = (text if text is not None and is_relative_time(text) else None for text in (self.start, self.end))
        return start, end


@app.command("list")
@watchable
def list_topics(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List dead-letter topics, those with errors.deadletterqueue.group.enable=true, with their records.

    The number of records includes transaction markers, which exactly-once consumers write.
    """
    with admin_client(bootstrap) as client:
        topics = _dead_letter_topics(topics_with_configs(client))
        sizes = {topic: sum(end - begin for begin, end in record_bounds(client, topic).values()) for topic in topics}
    document = [{"topic": topic, "records": size} for topic, size in sizes.items()]
    print_rows(as_json, document, ("topic", "records"), sizes.items())


def _dead_letter_topics(configs: Mapping[str, Mapping[str, str]]) -> list[str]:
    return [topic for topic, values in configs.items() if values.get(DEAD_LETTER_ENABLE) == "true"]


@app.command("show")
@paginated
def show(
    topic: DeadLetterTopic,
    *,
    selection: LetterSelection,
    max_records: Annotated[int | None, option("--max -n N", "Stop after N records.", min=1, max=INT32)] = None,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show dead letters: where they failed, how often, and why. --json prints whole records, as kbroker consume does.

    For a dead letter that is only a pointer, the record that it names is read, too: --json has it as "original".

    Example: kbroker dlq show dlq.orders --group billing --error ValueError
    """
    letters = selection.filter()
    found: list[ConsumedRecord] = []
    with Interrupts(SIGNALS) as interrupts, admin_client(bootstrap) as cluster:
        bounds = record_bounds(cluster, topic)
        begin, end = ({tp: offsets[number] for tp, offsets in bounds.items()} for number in (0, 1))
        consumer = PartitionConsumer(cluster, {}, isolation_level=READ_COMMITTED)
        for records in read_partitions(consumer, OffsetBounds(begin, end), None, interrupts):
            found += [record for record in records if letters.selects(record.headers, record.timestamp)]
            if max_records is not None and len(found) >= max_records:
                break
        found = found[:max_records]
        reader = OriginalReader(cluster)
        # None if a letter is no pointer, or the record that it names is gone.
        originals = [reader.read(dead_letter(each.headers)) if is_pointer(each.headers) else None for each in found]
    if as_json:
        for record, original in zip(found, originals, strict=True):
            line = to_json(record).decode()
            if is_pointer(record.headers):
                line = f'{line[:-1]}, "original": {"null" if original is None else to_json(original).decode()}}}'
            print(line)
    else:
        columns = ("partition", "offset", "time", "topic", "group", "attempts", "error", "message")
        print_table(columns, [_row(record, original) for record, original in zip(found, originals, strict=True)])


def _row(record: ConsumedRecord, original: ConsumedRecord | None) -> list[Cell]:
    letter = dead_letter(record.headers)
    origin = f"{letter.topic}-{letter.partition}@{letter.offset}" if letter.topic else None
    when = format_timestamp(record.timestamp)
    message = letter.message
    if letter.omitted is not None:
        gone = "; the record is gone" if original is None else ""
        message = f"{message or ''} [only a pointer, without {letter.omitted.replace(',', ', ')}{gone}]".strip()
    return [record.partition, record.offset, when, origin, letter.group, letter.attempts, letter.error, message]


@app.command("redrive")
def redrive(
    topic: DeadLetterTopic,
    *,
    selection: LetterSelection,
    to: Annotated[
        str | None, option("--to TOPIC", "Send to this topic.", show_default="the topic where each failed")
    ] = None,
    rate: Annotated[
        int | None, option("--rate N", "Records per second at most.", min=1, max=INT32, show_default="no limit")
    ] = None,
    again: Annotated[bool, option("--again", "Begin at the first record, even if it was sent before.")] = False,
    dry_run: DryRun = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Send dead letters back; their attempts start again from zero. The dead-letter topic keeps them, too.

    For a dead letter that is only a pointer, the record that it names is read and sent.

    The progress is committed as the offsets of a group, in one transaction with the records. So the same command
    continues an interrupted redrive, and later sends only new dead letters.

    Example: kbroker dlq redrive dlq.orders --error TimeoutError --rate 100

    Example: kbroker dlq redrive dlq.orders --group billing --to orders-billing-retry
    """
    letters = selection.filter()
    if to == topic:
        raise usage_error(f"--to is {topic} itself: a redriven record also stays there")
    with admin_client(bootstrap) as client:
        configs = require_dead_letter_topic(client, topic)
        if to is not None:
            partition_leaders(client, [to])  # raises for a missing one
        sources = {name: source for name, values in configs.items() if (source := values.get(VIEW_OF))}
        total = sum(last - begin for begin, last in record_bounds(client, topic).values())
    with (
        admin_client(bootstrap, {**MAX_VERSIONS, **LAST_VERSIONS}) as client,
        ProgressBar("redriving", total) as progress,
    ):
        work = Redrive(client, topic, letters, to, selection.relative_times(), sources)
        counts = work.run(rate=rate, again=again, dry_run=dry_run, progress=progress.advance)
    action = "would be sent" if dry_run else "sent"
    print(f"{topic}: {count_text(counts[SENT], 'record')} {action}, {counts[SKIPPED]} not selected")
    print_note(f"the progress is stored as group {work.group}; --again ignores it")
    if counts[WITHOUT_TOPIC]:
        raise CliError(f"{count_text(counts[WITHOUT_TOPIC], 'record')} without a topic to go back to: use --to TOPIC")
    if counts[WITHOUT_ORIGINAL]:
        raise CliError(f"{count_text(counts[WITHOUT_ORIGINAL], 'pointer')} to records that are gone")


def require_dead_letter_topic(client: ClusterClient, topic: str) -> dict[str, dict[str, str]]:
    """Raise CliError if it is none. Returns the configs of all topics."""
    configs = topics_with_configs(client)
    if topic not in _dead_letter_topics(configs):
        record_bounds(client, topic)  # raises for a missing one
        raise CliError(f"{topic} is not a dead-letter topic: {DEAD_LETTER_ENABLE} is not true")
    return configs


@app.command("purge")
def purge(
    topic: DeadLetterTopic,
    *,
    selection: DeletionOptions,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete dead letters, from the beginning of each partition up to a time or an offset.

    Example: kbroker dlq purge dlq.orders --until 7d
    """
    selection.check()
    with admin_client(bootstrap) as client:
        require_dead_letter_topic(client, topic)
        print(selection.delete(client, topic, dry_run=dry_run, yes=yes))
