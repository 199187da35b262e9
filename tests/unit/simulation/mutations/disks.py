"""Mistakes that show when disks of a cluster fill and empty."""

from typing import Any

import pytest

from kbroker.metadata import replication_control_manager
from kbroker.metadata.image import WriteHealth
from kbroker.metadata.replication import alter_partition
from kbroker.replica.isr import isr_manager
from kbroker.replica.isr.write_health_reporter import WriteHealthReporter
from kbroker.simulation.scenarios.disk_space_faults import fill, fill_several, flap
from kbroker.simulation.scenarios.faults import Fault
from tests.unit.simulation.mutations.mutation import INVARIANT, mutation, replaces, wrap
from tests.unit.simulation.mutations.shapes import Shape, only


def disks(fault: Fault) -> Shape:
    """Two producers, and one fault at a time."""
    none = dict.fromkeys(("members", "transactors", "transformers", "stale_clients"), 0)
    return only(fault, seconds=14.0, pause_s=1.0, producers=2, readers=1, **none)


@mutation("cluster-disks", [INVARIANT], disks(fill))
@replaces(WriteHealthReporter, "_is_needed")
def brokers_that_cannot_write_report_nothing(original: Any, reporter: Any, health: WriteHealth) -> bool:
    """A broker whose disk is full keeps its roles, and refuses writes."""
    return False


@mutation("cluster-disks", [INVARIANT], disks(fill))
@replaces(replication_control_manager, "give_up_replica")
def leaders_that_cannot_write_stay(original: Any, partition: Any, broker_id: int, *arguments: Any) -> Any:
    """Only followers leave the ISR when they cannot write."""
    return None if partition.leader == broker_id else original(partition, broker_id, *arguments)


@mutation("cluster-disks", [INVARIANT], disks(fill))
@replaces(replication_control_manager, "give_up_replica")
def followers_that_cannot_write_stay_in_sync(original: Any, partition: Any, broker_id: int, *arguments: Any) -> Any:
    """Only leaders leave the ISR when they cannot write: acks=all waits for the followers."""
    return original(partition, broker_id, *arguments) if partition.leader == broker_id else None


@mutation("cluster-disks", [INVARIANT], disks(fill_several))
def brokers_on_probation_are_not_needed(patch: pytest.MonkeyPatch) -> None:
    """A broker on probation does not join the ISR where writes have stopped without it."""

    def may_join(original: Any, broker_id: int, isr: Any, write_health: Any, min_isr: int) -> bool:
        return write_health(broker_id) is WriteHealth.OK

    for module in (alter_partition, isr_manager):
        wrap(patch, module, "may_join", may_join)


@mutation("cluster-disks", [INVARIANT], disks(flap))
def brokers_that_cannot_write_join(patch: pytest.MonkeyPatch) -> None:
    """A follower whose disk is full joins the ISR of a partition to which nobody writes."""
    for module in (alter_partition, isr_manager):
        wrap(patch, module, "may_join", lambda original, *arguments: True)
