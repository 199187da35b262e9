"""The reassignments in progress: which replicas partitions gain and lose (KIP-455)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kbroker.cli.common.client import read_again
from kbroker.cli.common.partitions.list_offsets import Partition


class ReplicaChanges(NamedTuple):
    """Broker ids."""

    adding: list[int]
    removing: list[int]


NO_REASSIGNMENT = ReplicaChanges([], [])


def reassignments(client: Any) -> Mapping[Partition, ReplicaChanges]:
    """Return the partitions of the cluster that are being reassigned."""
    ongoing = read_again(client.list_partition_reassignments)
    return {
        (tp.topic, tp.partition): ReplicaChanges(row["adding_replicas"], row["removing_replicas"])
        for tp, row in ongoing.items()
    }
