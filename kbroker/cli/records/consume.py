"""`kbroker consume`: print records of topics."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from kbroker.cli.common.client import client_settings, kafka_python_errors
from kbroker.cli.common.completion import complete_groups, complete_topics
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap, argument, option
from kbroker.cli.common.stop_signals import SIGNALS, Interrupts
from kbroker.cli.common.values import INT32, PartitionPosition, parse_position
from kbroker.cli.records.polling import (
    MAX_POLL_RECORDS,
    Printer,
    consume_as_member,
    consume_partitions,
    existing_partitions,
    find_bounds,
)

COMMIT_INTERVAL_MS = 1000
MAX_PARTITION_FETCH_BYTES = 4 << 20
MAX_BATCH_BYTES = 256 << 20


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
    now_ms = round(time.time() * 1000)
    start = parse_position(from_, now_ms) if from_ is not None else PartitionPosition("earliest")
    stop = parse_position(to, now_ms) if to is not None else None
    if group is not None and (partition or stop is not None or start.kind not in ("earliest", "latest")):
        raise usage_error(
            "--group reads from committed offsets: it excludes --partition and --to, and allows --from only as "
            "earliest or latest"
        )
    settings = {
        "group_id": group,
        "auto_offset_reset": start.kind if group is not None else "earliest",
        "enable_auto_commit": group is not None,
        "auto_commit_interval_ms": COMMIT_INTERVAL_MS,
        "isolation_level": "read_committed" if read_committed else "read_uncommitted",
        "allow_auto_create_topics": False,
        "max_poll_records": MAX_POLL_RECORDS,
        "max_partition_fetch_bytes": MAX_PARTITION_FETCH_BYTES,
        "metrics_enabled": False,
        "exclude_internal_topics": False,
    }
    separator = None if key_separator is None else key_separator.replace("\\t", "\t").encode()
    printer = Printer(as_json=as_json, separator=separator, for_terminal=not values and sys.stdout.isatty())
    try:
        with Interrupts(SIGNALS) as interrupts, open_consumer(client_settings(bootstrap) | settings) as consumer:
            partitions = existing_partitions(consumer, topics, partition)
            if group is not None:
                consume_as_member(consumer, topics, printer, count, follow, interrupts)
            else:
                bounds = find_bounds(consumer, partitions, start, stop, follow)
                consume_partitions(consumer, bounds, printer, count, interrupts)
    except KeyboardInterrupt:
        if not follow:
            raise


@contextmanager
def open_consumer(config: dict[str, Any]) -> Iterator[Any]:
    """Open a KafkaConsumer and close it at the end; its errors are raised as CliError."""
    from kafka import KafkaConsumer, codec

    # kafka-python limits zstd frames that do not contain their size to 1 MiB.
    codec.ZSTD_MAX_OUTPUT_SIZE = MAX_BATCH_BYTES
    with kafka_python_errors():
        client = KafkaConsumer(**config)
        try:
            yield client
        finally:
            client.close(autocommit=False)
