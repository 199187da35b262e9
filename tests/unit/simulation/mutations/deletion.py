"""Mistakes in how topics are deleted."""

from collections.abc import Callable, Sequence

import pytest

from kbroker.replica.logs import log_manager, stray_logs
from kbroker.runtime.disk import Disk
from kbroker.storage.recovery import open_log
from tests.unit.simulation.mutations.mutation import mutation
from tests.unit.simulation.mutations.shapes import only

# The next topic has records of the deleted one, or a state that does not fit them.
SIGNS = ("BrokenDeletion", "BrokenInvariant")


def ignore_topic_ids(patch: pytest.MonkeyPatch) -> None:
    """The topic id in a partition's directory counts as unknown."""

    def read_topic_id(disk: Disk, directory: str) -> bytes | None:
        return None

    patch.setattr(stray_logs, "read_topic_id", read_topic_id)
    patch.setattr(open_log, "read_topic_id", read_topic_id)


@mutation(
    "The next topic of the same name keeps the directory of a deleted one.",
    scenario="crash",
    signs=SIGNS,
    shape=only("kill", members=0, recreation=True),
)
def deletion_keeps_the_directory(patch: pytest.MonkeyPatch) -> None:
    def try_each_blocking(action: Callable[..., None], calls: Sequence[tuple[str, ...]]) -> None:
        """Rename and remove nothing."""

    patch.setattr(log_manager, "_try_each_blocking", try_each_blocking)
    ignore_topic_ids(patch)


@mutation(
    "A directory that could not be renamed with the deletion is used for the next topic of the same name.",
    scenario="everything",
    signs=SIGNS,
    shape=only("read_only", members=0, recreation=True, coordination=True),
    first_seed=4,
)
def deletion_trusts_a_failed_rename(patch: pytest.MonkeyPatch) -> None:
    ignore_topic_ids(patch)


DELETION = (deletion_keeps_the_directory, deletion_trusts_a_failed_rename)
