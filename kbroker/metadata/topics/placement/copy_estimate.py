"""Estimates how long the copies of a plan take while producers keep writing to the partitions that move."""

from collections.abc import Mapping
from math import inf
from typing import NamedTuple

from kbroker.metadata.topics.placement.reassignment_plan import ReassignmentPlan

# Bytes per second that producers write, by topic and partition.
WriteRates = Mapping[tuple[str, int], float]


class CopyEstimate(NamedTuple):
    """The time of all copies, which is that of the busiest broker, `broker`.

    `new_bytes_per_second`: the write rate of the partitions that it copies at the same time. If that is not less than
    `bytes_per_second`, the copies never catch up, and `seconds` is infinite.
    """

    bytes_per_second: float
    seconds: float
    broker: int | None = None
    new_bytes_per_second: float = 0.0

    @property
    def is_endless(self) -> bool:
        return self.seconds == inf


class _Copy(NamedTuple):
    size_bytes: int
    new_bytes_per_second: float


def estimate_copies(
    plan: ReassignmentPlan, bytes_per_second: float, write_rates: WriteRates, max_concurrent_moves: int
) -> CopyEstimate:
    """Return how long the copies take if each broker receives, and sends, at most `bytes_per_second`.

    All brokers copy at the same time, so the busiest one determines the result. The worst case is assumed: that its
    partitions with the highest write rates move at the same time, as many as the plan allows.
    """
    busiest = CopyEstimate(bytes_per_second, 0.0)
    for (broker, _), copies in sorted(_copies(plan, write_rates).items()):
        written = sorted((copy.new_bytes_per_second for copy in copies), reverse=True)
        new_bytes = sum(written[:max_concurrent_moves])
        left = bytes_per_second - new_bytes
        size_bytes = sum(copy.size_bytes for copy in copies)
        seconds = size_bytes / left if left > 0 else inf
        if seconds > busiest.seconds:
            busiest = CopyEstimate(bytes_per_second, seconds, broker, new_bytes)
    return busiest


def _copies(plan: ReassignmentPlan, write_rates: WriteRates) -> dict[tuple[int, bool], list[_Copy]]:
    """Return the copies by (broker, whether it sends): those that it receives, and those that it sends as a leader."""
    copies: dict[tuple[int, bool], list[_Copy]] = {}
    for move in plan.moves:
        new_bytes = write_rates.get((move.topic, move.partition), 0.0)
        for broker in move.added:
            copies.setdefault((broker, False), []).append(_Copy(move.size_bytes, new_bytes))
        if move.source is not None and move.added:
            copy = _Copy(move.copied_bytes, new_bytes * len(move.added))
            copies.setdefault((move.source, True), []).append(copy)
    return copies
