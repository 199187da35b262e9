"""`kbroker consume`: print records of topics."""

import sys
import time
from typing import Annotated

from kbroker.cli.common.client import admin_client
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap, argument, option
from kbroker.cli.common.stop_signals import SIGNALS, Interrupts
from kbroker.cli.common.values import INT32, PartitionPosition, parse_position


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
            "Join this group: start at its committed offsets, commit what is printed.",
            complete=complete_groups,
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "Print each record as one JSON object with all its fields.")] = False,
    key_separator: Annotated[str | None, option("--key-separator -K SEP", "Print KEY SEP VALUE.")] = None,
    values: Annotated[bool, option("--values", "Print values only, even on a terminal.")] = False,
    read_committed: Annotated[
        bool, option("--read-committed", "Skip records of open and aborted transactions.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Print records of topics, up to the current end or with --follow until Ctrl-C.

    In a pipe, prints each value as one line. `kbroker produce --json` reads what --json prints, without loss.
    TIME is ISO 8601 (default UTC), milliseconds since the epoch, or a duration ago such as 15m.

    Example: kbroker consume orders --from @2026-01-31T12:00 --count 10 --json
    """
    # Imported here to keep completion fast.
    from kbroker.cli.records.polling import (
        GroupReader,
        Printer,
        consume_partitions,
        existing_partitions,
        find_bounds,
    )
    from kbroker.client.admin import READ_COMMITTED, READ_UNCOMMITTED
    from kbroker.client.consumer import PartitionConsumer

    now_ms = round(time.time() * 1000)
    start = parse_position(from_, now_ms) if from_ is not None else PartitionPosition("earliest")
    stop = parse_position(to, now_ms) if to is not None else None
    if group is not None and (partition or stop is not None or start.kind not in ("earliest", "latest")):
        raise usage_error(
            "--group reads from committed offsets: it excludes --partition and --to, and allows --from only as "
            "earliest or latest"
        )
    isolation_level = READ_COMMITTED if read_committed else READ_UNCOMMITTED
    separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode()
    printer = Printer(as_json=as_json, separator=separator, for_terminal=not values and sys.stdout.isatty())
    try:
        with Interrupts(SIGNALS) as interrupts, admin_client(bootstrap) as cluster:
            partitions = existing_partitions(cluster, topics, partition)
            if group is not None:
                reader = GroupReader(cluster, group, topics, start, isolation_level)
                reader.print_records(printer, count, follow, interrupts)
            else:
                bounds = find_bounds(cluster, partitions, start, stop, follow, isolation_level)
                consumer = PartitionConsumer(cluster, {}, isolation_level=isolation_level)
                consume_partitions(consumer, bounds, printer, count, interrupts)
    except KeyboardInterrupt:
        if not follow:
            raise
