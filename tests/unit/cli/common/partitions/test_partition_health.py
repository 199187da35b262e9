"""The conditions of partitions."""

import pytest

from kbroker.cli.common.partitions.partition_health import CONDITIONS, PartitionHealth


@pytest.mark.parametrize(
    ("partition", "conditions"),
    [
        (PartitionHealth(1, [1, 2, 3], [1, 2, 3], 2), set()),
        (PartitionHealth(2, [1, 2, 3], [1, 2, 3], 2), {"out-of-preference"}),
        (PartitionHealth(1, [1, 2, 3], [1, 2], 1), {"under-replicated"}),
        (PartitionHealth(1, [1, 2, 3], [1, 2], 1, [3]), set()),
        (PartitionHealth(1, [1, 2, 3], [1, 2], 2), {"under-replicated", "at-min-isr"}),
        (PartitionHealth(1, [1, 2, 3], [1], 2), {"under-replicated", "under-min-isr"}),
        (PartitionHealth(-1, [1, 2, 3], [1], 2), {"under-replicated", "under-min-isr", "offline"}),
        # A topic with one replica accepts acks=all, whatever min.insync.replicas is.
        (PartitionHealth(1, [1], [1], 2), set()),
    ],
)
def test_conditions(partition: PartitionHealth, conditions: set[str]) -> None:
    assert {name for name, is_met in CONDITIONS.items() if is_met(partition)} == conditions
