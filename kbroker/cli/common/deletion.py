"""Deletes records at the beginning of partitions: `kbroker topics delete-records`, `kbroker dlq purge`."""

import time
from typing import Annotated, NamedTuple

from kbroker.cli.common.client import partition_leaders
from kbroker.cli.common.errors import CliError, usage_error
from kbroker.cli.common.options import option
from kbroker.cli.common.output import confirm
from kbroker.cli.common.values import INT32, count_text, parse_time_ms
from kbroker.client.cluster import ClusterClient
from kbroker.client.offsets import EARLIEST, LATEST, delete_records, list_offsets
from kbroker.common import TopicPartition

DryRun = Annotated[bool, option("--dry-run", "Print what would be done, and change nothing.")]


def record_bounds(client: ClusterClient, topic: str) -> dict[TopicPartition, tuple[int, int]]:
    """Return (log start offset, log end offset) by partition. Raises CliError for a missing topic."""
    partitions = sorted(partition_leaders(client, [topic]))
    begin = list_offsets(client, dict.fromkeys(partitions, EARLIEST))
    end = list_offsets(client, dict.fromkeys(partitions, LATEST))
    return {tp: (offset, end[tp]) for tp, offset in sorted(begin.items())}


class DeletionOptions(NamedTuple):
    """Which records a command deletes."""

    until: Annotated[
        str | None, option("--until TIME", "Delete the records before the first one with this or a later timestamp.")
    ] = None
    partition: Annotated[int | None, option("--partition -p PARTITION", "Only this partition.", max=INT32)] = None
    offset: Annotated[int | None, option("--offset OFFSET", "Delete the records below it; needs -p.", min=0)] = None
    all_records: Annotated[bool, option("--all", "Delete all records.")] = False

    def check(self) -> None:
        """Raises CliError for options that do not go together."""
        if sum((self.until is not None, self.offset is not None, self.all_records)) != 1:
            raise usage_error("choose one: --until TIME, --offset OFFSET or --all")
        if self.offset is not None and self.partition is None:
            raise usage_error("--offset needs --partition")

    def delete(self, client: ClusterClient, topic: str, *, dry_run: bool, yes: bool) -> str:
        """Delete the records after a confirmation, and return what was done. Raises CliError."""
        bounds = {tp: b for tp, b in record_bounds(client, topic).items() if self.partition in (None, tp.partition)}
        if not bounds:
            raise CliError(f"topic {topic} has no partition {self.partition}")
        cut = {tp: last if self.offset is None else min(self.offset, last) for tp, (_, last) in bounds.items()}
        if self.until is not None:
            until_ms = parse_time_ms(self.until, round(time.time() * 1000))
            at_time = list_offsets(client, dict.fromkeys(bounds, until_ms))
            cut = {tp: at_time[tp] if at_time[tp] >= 0 else cut[tp] for tp in bounds}
        cut = {tp: end for tp, end in cut.items() if end > bounds[tp][0]}
        count = sum(end - bounds[tp][0] for tp, end in cut.items())
        if count and not dry_run:
            confirm(f"Delete {count_text(count, 'record')} of {topic}?", yes)
            delete_records(client, cut)
        return f"{topic}: {count_text(count, 'record')} {'would be deleted' if dry_run else 'deleted'}"
