"""Write rates follow from the offsets now and a minute ago, and from the average size of records."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kbroker.cli.cluster.plans import write_rates
from kbroker.cli.common.partitions.list_offsets import EARLIEST, LATEST, Offsets, Partition
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, PlacedPartition, cluster_layout
from kbroker.metadata.reassignments.placement.reassignment_plan import plan_of

NOW_MS = 1_000_000


def test_write_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    offsets = {
        0: {EARLIEST: 100, LATEST: 1100, NOW_MS - 60_000: 500},
        1: {EARLIEST: 0, LATEST: 10, NOW_MS - 60_000: -1},
        2: {EARLIEST: 0, LATEST: 10},
        3: {EARLIEST: 5, LATEST: 5, NOW_MS - 60_000: 5},
    }

    def list_offsets(client: Any, partitions: Mapping[int, Sequence[Partition]], timestamp: int) -> Offsets:
        assert partitions == {1: [("t", index) for index in range(4)]}
        return {(1, ("t", index)): known[timestamp] for index, known in offsets.items() if timestamp in known}

    monkeypatch.setattr(write_rates, "list_offsets", list_offsets)
    parts = [PlacedPartition("t", index, (1,), 1, 50_000) for index in range(4)]
    # Partitions that only change the order of replicas, or are empty, are not asked for.
    parts += [PlacedPartition("u", 0, (1, 2), 1, 50_000), PlacedPartition("u", 1, (1,), 1, 0)]
    layout = cluster_layout([ClusterBroker(1), ClusterBroker(2)], parts)
    targets = {("t", index): (2,) for index in range(4)} | {("u", 0): (2, 1), ("u", 1): (2,)}
    # 600 of 1000 records, so 30,000 bytes in 60 seconds.
    assert write_rates.measure_write_rates(None, plan_of(layout, targets), NOW_MS) == {("t", 0): 500.0}
