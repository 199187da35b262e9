"""`kbroker topics list`: topics with their sizes, record counts and last writes."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any

from kbroker.cli.common.client import admin_client
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, option
from kbroker.cli.common.output import Cell, print_rows, watchable
from kbroker.cli.common.values import format_size, format_timestamp, if_known
from kbroker.client.admin import MetadataTopic, describe_log_dirs, describe_topics, topic_configs
from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    offsets_at_brokers,
    partitions_by_leader,
    rows_at_brokers,
)
from kbroker.client.requests import Partition
from kbroker.common import uuid_text

# As in kbroker.config, which a command imports only if it needs more of it.
VIEW_OF = "kbroker.view.of"

# Of a partition without records.
NO_TIMESTAMP = -1


@watchable
def list_topics(
    internal: Annotated[bool, option("--internal", "Include internal topics.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List topics with their sizes, records and last writes, and the sources of views.

    SIZE is that of the leaders' logs. RECORDS is the number of offsets from the earliest to the latest: compaction and
    transactions leave offsets without a record. LAST_WRITE is the highest timestamp of a record. A figure is missing if
    the leader of a partition does not respond.
    """
    with admin_client(bootstrap) as client:
        topics = sorted(topic for topic in describe_topics(client) if internal or not topic.is_internal)
        figures = topic_figures(client, topics)
        sources = view_sources(client, [topic.name for topic in topics])
    summaries = [topic_summary(topic, sources.get(topic.name)) | figures[topic.name] for topic in topics]
    view_of = ("view_of",) if sources else ()
    rows: list[list[Cell]] = [
        [
            *(topic[name] for name in ("topic", "partition_count", "replication_factor")),
            if_known(format_size, topic["size_bytes"]),
            topic["records"],
            if_known(format_timestamp, topic["last_write_ms"]),
            *(topic.get(name) for name in view_of),
        ]
        for topic in summaries
    ]
    columns = ("topic", "partitions", "replicas", "size", "records", "last write", *view_of)
    print_rows(as_json, summaries, columns, rows)


def topic_figures(client: ClusterClient, topics: Sequence[MetadataTopic]) -> dict[str, dict[str, int | None]]:
    """Return size, record count and last write by topic, None for what a leader does not report.

    Each broker gets one request for sizes, and three for the offsets of up to 1,000 partitions.
    """
    begin = offsets_at_brokers(client, partitions_by_leader(topics), EARLIEST)
    # A leader that does not respond is not asked again: each time would take seconds.
    led: dict[int, list[Partition]] = {}
    for leader, partition in begin:
        led.setdefault(leader, []).append(partition)
    logs = describe_log_dirs(client, led)
    sizes = {
        partition: logs[leader].sizes[partition]
        for leader, partitions in led.items()
        for partition in partitions
        if leader in logs and partition in logs[leader].sizes
    }
    end = offsets_at_brokers(client, led, LATEST)
    counts = {key[1]: end[key] - offset for key, offset in begin.items() if key in end}
    newest = {partition: row.timestamp for (_, partition), row in rows_at_brokers(client, led, MAX_TIMESTAMP).items()}
    figures: dict[str, dict[str, int | None]] = {}
    for topic in topics:
        partitions = [(topic.name, row.partition_index) for row in topic.partitions]
        last_write_ms = _reduce(max, newest, partitions)
        figures[topic.name] = {
            "size_bytes": _reduce(sum, sizes, partitions),
            "records": _reduce(sum, counts, partitions),
            "last_write_ms": None if last_write_ms == NO_TIMESTAMP else last_write_ms,
        }
    return figures


def _reduce(
    function: Callable[[list[int]], int], found: Mapping[Partition, int], partitions: Collection[Partition]
) -> int | None:
    """Return the sum or the maximum over the partitions; None if the value of one is missing."""
    values = [found[partition] for partition in partitions if partition in found]
    return function(values) if len(values) == len(partitions) > 0 else None


def view_sources(client: ClusterClient, topics: Sequence[str]) -> dict[str, str]:
    """Return the source of each of the topics that is a view."""
    configs = topic_configs(client, topics, [VIEW_OF])
    return {topic: source for topic, values in configs.items() if (source := values.get(VIEW_OF))}


def topic_summary(topic: MetadataTopic, view_of: str | None) -> dict[str, Any]:
    """Return the JSON of a topic without its partitions. `view_of`: the source of a view."""
    return {
        "topic": topic.name,
        "topic_id": uuid_text(topic.topic_id),
        "internal": topic.is_internal,
        **({} if view_of is None else {"view_of": view_of}),
        "partition_count": len(topic.partitions),
        "replication_factor": max((len(partition.replica_nodes) for partition in topic.partitions), default=0),
    }
