"""How far the archive of a topic lags behind, for `kbroker topics describe` and `kbroker doctor`."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.cli.common.values import count_text
from kbroker.client.admin import MetadataTopic, topic_configs
from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import LATEST, NOT_ARCHIVED, partitions_by_leader, rows_at_brokers

ARCHIVE_TABLE = "kbroker.archive.table"


class ArchiveLag(NamedTuple):
    """`offset`: the first one that is not archived; None if the archive cannot be read or does not have the partition.

    `records`: those from there on; `seconds`: the age of the first of them, 0 without one.
    """

    offset: int | None
    records: int | None
    seconds: float | None

    def __str__(self) -> str:
        if self.records is None or self.seconds is None:
            return "unknown"
        return f"{self.records} ({self.seconds:.0f} s)" if self.records else "0"


# An archive is late if a record has waited for it for this time.
LATE_S = 600.0
UNKNOWN = ArchiveLag(None, None, None)


def archive_lags(client: ClusterClient, topic: MetadataTopic) -> Mapping[int, ArchiveLag]:
    """Return the lag of each partition of a topic that has an archive."""
    led = partitions_by_leader([topic])
    archived = {key: row for (_, key), row in rows_at_brokers(client, led, NOT_ARCHIVED).items()}
    latest = {key: row.offset for (_, key), row in rows_at_brokers(client, led, LATEST).items()}
    lags = {}
    for partition in topic.partitions:
        key = (topic.name, partition.partition_index)
        row, end = archived.get(key), latest.get(key)
        lags[key[1]] = UNKNOWN
        if row is not None and row.offset >= 0 and end is not None:
            seconds = 0.0 if row.timestamp < 0 else max(0.0, time.time() - row.timestamp / 1000)
            lags[key[1]] = ArchiveLag(row.offset, max(0, end - row.offset), round(seconds, 3))
    return lags


def late_archives(client: ClusterClient, topics: Sequence[MetadataTopic]) -> list[str]:
    """Return a sentence about each topic whose archive cannot be read, or is late."""
    sentences = []
    configs = topic_configs(client, [topic.name for topic in topics], set_only=True)
    for topic in topics:
        table = configs.get(topic.name, {}).get(ARCHIVE_TABLE)
        lags = list(archive_lags(client, topic).values()) if table else []
        unknown = sum(lag.records is None for lag in lags)
        oldest = max([lag.seconds or 0 for lag in lags], default=0)
        if unknown:
            text = f"{count_text(unknown, 'partition')} of topic {topic.name} cannot be read in its archive {table}"
            sentences.append(text)
        elif oldest > LATE_S:
            records = count_text(sum(lag.records or 0 for lag in lags), "record")
            sentences.append(f"topic {topic.name} has {records} that are not archived, for up to {oldest:.0f} s")
    return sentences
