"""Mistakes in how topics are deleted."""

import pytest

from kbroker.replica.logs import log_manager, stray_logs
from kbroker.storage.recovery import open_log
from tests.unit.simulation.mutations.mutation import INVARIANT, mutation
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
