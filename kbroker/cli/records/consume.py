"""`kbroker consume`: print records of topics."""

import os
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

from kbroker.cli.common.client import admin_client
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap, argument, option
from kbroker.cli.common.stop_signals import SIGNALS, Interrupts
from kbroker.cli.common.values import INT32, PartitionPosition, parse_position

# What reads and formats records is imported by the functions, to keep completion fast.
if TYPE_CHECKING:
    from kbroker.cli.records.polling import Printer
    from kbroker.client.consumer import ConsumedRecord


class RecordSelection(NamedTuple):
    """Which records to print. Each condition that is set must hold."""

    grep: Annotated[
        str | None, option("--grep REGEX", "Only records whose value contains this Python regular expression.")
    ] = None
    key: Annotated[str | None, option("--key -k KEY", "Only records with exactly this key.")] = None
    header: Annotated[
        list[str] | None, option("--header -H NAME=VALUE", "Only records with this header; repeatable.")
    ] = None

    def filter(self) -> "Callable[[ConsumedRecord], bool] | None":
        """Return what says whether a record is selected, None for all of them. Raises CliError."""
        from kbroker.cli.records.formats import parse_headers

        if all(condition is None for condition in self):
            return None
        pattern = None if self.grep is None else _regular_expression(self.grep)
        key = None if self.key is None else self.key.encode()
        headers = parse_headers(self.header or [])

        def selects(record: "ConsumedRecord") -> bool:
            return (
                (key is None or record.key == key)
                and all(header in record.headers for header in headers)
                and (pattern is None or pattern.search((record.value or b"").decode(errors="replace")) is not None)
            )

        return selects


def _regular_expression(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise usage_error(f"--grep: {error}, in {text!r}") from None


class OutputFormat(NamedTuple):
    """How to print records."""

    as_json: Annotated[bool, option("--json", "Print each record as one JSON object with all its fields.")] = False
    format: Annotated[
        str | None,
        option(
            "--format FORMAT",
            "Print as kcat does: %t topic, %p partition, %o offset, %T timestamp, %k key, %s value, %K and %S their "
            "lengths, %h headers, %%, \\n, \\t. Without \\n there is no line end.",
        ),
    ] = None
    key_separator: Annotated[str | None, option("--key-separator -K SEP", "Print KEY SEP VALUE.")] = None
    values: Annotated[bool, option("--values", "Print values only, even on a terminal.")] = False

    def printer(self) -> "Printer":
        """Raises CliError for options that exclude each other."""
        from kbroker.cli.records.formats import parse_format, to_json, to_plain, to_terminal
        from kbroker.cli.records.polling import Printer

        if sum(choice not in (None, False) for choice in self) > 1:
            raise usage_error("choose one: --json, --format, --key-separator or --values")
        if self.format is not None:
            return Printer(parse_format(self.format), end=b"")
        if self.as_json:
            return Printer(to_json)
        if self.key_separator is None and not self.values and sys.stdout.isatty():
            return Printer(partial(to_terminal, colors="NO_COLOR" not in os.environ))
        separator = None if self.key_separator is None else self.key_separator.replace("\\t", "\t").encode()
        return Printer(partial(to_plain, separator=separator))


def consume(
    topics: Annotated[list[str], argument("TOPIC...", complete=complete_topics)],
    partition: Annotated[
        list[int] | None, option("--partition -p PARTITION", "Read this partition only; repeatable.", max=INT32)
    ] = None,
    from_: Annotated[
        str | None,
        option(
            "--from POSITION",
            "Start at earliest, latest, an offset, -N (the last N records) or @TIME.",
            show_default="earliest",
        ),
    ] = None,
    to: Annotated[
        str | None, option("--to POSITION", "Stop before this position.", show_default="the current end")
    ] = None,
    count: Annotated[int | None, option("--count -n N", "Stop after N records.", min=1)] = None,
    follow: Annotated[bool, option("--follow -f", "Wait for new records at the end, until Ctrl-C.")] = False,
    group: Annotated[
        str | None,
        option(
            "--group -g GROUP",
            "Join this group: start at its committed offsets, commit what is printed or not selected.",
            complete=complete_groups,
        ),
    ] = None,
    *,
    selection: RecordSelection,
    output: OutputFormat,
    read_committed: Annotated[
        bool, option("--read-committed", "Skip records of open and aborted transactions.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print records of topics, up to the current end or with --follow until Ctrl-C.

    In a pipe, prints each value as one line. `kbroker produce --json` reads what --json prints, without loss. N counts
    selected records only. TIME is ISO 8601 (default UTC), milliseconds since the epoch, or a duration ago such as 15m.

    Example: kbroker consume orders --from @2026-01-31T12:00 --count 10 --json

    Example: kbroker consume orders --key customer-7 --grep 'total.: [0-9]{4}' --format '%o %k %s\\n'
    """
    from kbroker.cli.records.polling import GroupReader, consume_partitions, existing_partitions, find_bounds
    from kbroker.client.consumer import PartitionConsumer
    from kbroker.client.offsets import READ_COMMITTED, READ_UNCOMMITTED

    now_ms = round(time.time() * 1000)
    start = parse_position(from_, now_ms) if from_ is not None else PartitionPosition("earliest")
    stop = parse_position(to, now_ms) if to is not None else None
    if group is not None and (partition or stop is not None or start.kind not in ("earliest", "latest")):
        raise usage_error(
            "--group reads from committed offsets: it excludes --partition and --to, and allows --from only as "
            "earliest or latest"
        )
    isolation_level = READ_COMMITTED if read_committed else READ_UNCOMMITTED
    selects, printer = selection.filter(), output.printer()
    try:
        with Interrupts(SIGNALS) as interrupts, admin_client(bootstrap) as cluster:
            partitions = existing_partitions(cluster, topics, partition)
            consumer = PartitionConsumer(cluster, {}, isolation_level=isolation_level, selects=selects)
            if group is not None:
                reader = GroupReader(cluster, consumer, group, topics, start)
                reader.print_records(printer, count, follow, interrupts)
            else:
                bounds = find_bounds(cluster, partitions, start, stop, follow, isolation_level)
                consume_partitions(consumer, bounds, printer, count, interrupts, selects is not None)
    except KeyboardInterrupt:
        if not follow:
            raise
