"""Mistakes in how topics are deleted, and what counts as deleted when the metadata is lost or foreign."""

from collections.abc import Callable
from typing import Any

import pytest

from kbroker.common import TopicPartition
from kbroker.metadata import cluster_member
from kbroker.metadata.store.loaded_nodes import LoadedNodes
from kbroker.replica import assigned_partitions
from kbroker.replica.logs import log_manager, stray_logs
from kbroker.replica.logs.stray_logs import LogFate, StrayLogs
from kbroker.simulation.scenarios.simulation import Simulation
from kbroker.storage.recovery import open_log
from tests.unit.simulation.mutations.cluster import replicated
from tests.unit.simulation.mutations.mutation import INVARIANT, mutation, replaces, wrap
from tests.unit.simulation.mutations.shapes import only

# The next topic has records of the deleted one, or a state that does not fit them.
SIGNS = ["BrokenDeletion", INVARIANT]


def ignore_topic_ids(patch: pytest.MonkeyPatch) -> None:
    """The topic id in a partition's directory counts as unknown."""
    patch.setattr(stray_logs, "read_topic_id", lambda disk, directory: None)
    patch.setattr(open_log, "read_topic_id", lambda disk, directory: None)


@mutation("crash", SIGNS, only("kill", members=0, recreation=True))
def deletion_keeps_the_directory(patch: pytest.MonkeyPatch) -> None:
    """The next topic of the same name keeps the directory of a deleted one."""
    patch.setattr(log_manager, "_try_each_blocking", lambda action, calls: None)
    ignore_topic_ids(patch)


@mutation("everything", SIGNS, only("read_only", members=0, recreation=True, coordination=True), first_seed=4)
def deletion_trusts_a_failed_rename(patch: pytest.MonkeyPatch) -> None:
    """A directory that could not be renamed with the deletion is used for the next topic of the same name."""
    ignore_topic_ids(patch)


SCENARIO = "cluster-metadata"
# A broker that joins another cluster is detected; if it has left only its secret yet, by the next broker that starts.
FOREIGN_SIGNS = [INVARIANT, "WrongSecret"]


async def _check_nothing(*_: Any) -> None:
    pass


def join_any_cluster(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cluster_member, "check_same_cluster", _check_nothing)


@mutation(SCENARIO, FOREIGN_SIGNS, replicated(seconds=8.0))
def joins_again_without_comparing_the_cluster(patch: pytest.MonkeyPatch) -> None:
    """A broker whose session has expired registers in the cluster that it finds."""
    join_any_cluster(patch)


@mutation(SCENARIO, [INVARIANT], replicated(seconds=8.0))
def a_missing_topic_counts_as_deleted(patch: pytest.MonkeyPatch) -> None:
    """A running broker deletes the logs of topics that it does not find any more. (It joins any cluster, too.)"""
    join_any_cluster(patch)
    # Otherwise this alone would be detected, before any log is deleted.
    patch.setattr(cluster_member, "check_secret", _check_nothing)
    patch.setattr(Simulation, "_check_registered", lambda simulation: None)

    def update(original: Callable[..., None], loaded: LoadedNodes, nodes: Any, rows: Any, delta: Any, _: Any) -> None:
        original(loaded, nodes, rows, delta, None)

    wrap(patch, LoadedNodes, "update", update)


@mutation(SCENARIO, [INVARIANT], replicated(seconds=8.0), first_seed=3, slow=True)
@replaces(assigned_partitions, "fate_of_log")
def a_start_deletes_the_logs_of_unknown_topics(original: Callable[..., LogFate], *arguments: Any) -> LogFate:
    """A broker that starts deletes what the metadata does not assign to it."""
    fate = original(*arguments)
    return LogFate.DELETE if fate is LogFate.SET_ASIDE else fate


@mutation(SCENARIO, [INVARIANT, "lost write"], replicated(seconds=8.0), first_seed=3, slow=True)
@replaces(StrayLogs, "take_back")
def logs_that_were_set_aside_stay_there(
    original: Callable[..., bool], logs: StrayLogs, directory: str, tp: TopicPartition, topic_id: bytes
) -> bool:
    """A log begins again without records although one was set aside."""
    logs._directories.clear()
    return original(logs, directory, tp, topic_id)
