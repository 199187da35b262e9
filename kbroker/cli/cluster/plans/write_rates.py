"""Measures what producers write to the partitions of a plan, which its copies have to catch up with."""

from typing import Any

from kbroker.cli.common.partitions.list_offsets import EARLIEST, LATEST, Partition, list_offsets
from kbroker.metadata.reassignments.placement.reassignment_plan import ReassignmentPlan

# The rate is that of this time, by the timestamps of the records.
MEASURED_MS = 60_000


def measure_write_rates(client: Any, plan: ReassignmentPlan, now_ms: int) -> dict[Partition, float]:
    """Return the bytes per second of the last minute, by partition that is copied. Those without records are missing.

    The records of a minute are taken to have the average size of the partition's records.
    """
    sizes: dict[Partition, int] = {}
    leaders: dict[int, list[Partition]] = {}
    for move in plan.moves:
        if move.added and move.size_bytes and move.source is not None:
            sizes[move.topic, move.partition] = move.size_bytes
            leaders.setdefault(move.source, []).append((move.topic, move.partition))
    latest = list_offsets(client, leaders, LATEST)
    before = list_offsets(client, leaders, now_ms - MEASURED_MS)
    earliest = list_offsets(client, leaders, EARLIEST)
    rates = {}
    for key, offset in before.items():
        records = latest.get(key, offset) - earliest.get(key, offset)
        # The offset is -1 if no record is as new.
        new = latest.get(key, offset) - offset if offset >= 0 else 0
        if new > 0 and records > 0:
            rates[key[1]] = sizes[key[1]] * new / records * 1000 / MEASURED_MS
    return rates
