"""What the end of a process may lose, as a Loss for the history."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.simulation.checker.history import Loss
from kbroker.simulation.disk.log_files import GROUPS_TOPIC, durable_commits, durable_ends, partition_directories
from kbroker.simulation.runtime.machine import DATA
from kbroker.storage.file_names import LOG

if TYPE_CHECKING:
    from kbroker.simulation.disk.disk import SimDisk


def loss_of(disk: SimDisk, *, power: bool) -> Loss | None:
    """Return what a lone broker may lose with its process; None if that is nothing. After a kill, only data that a
    failed sync left unwritten is lost: the next start reads what is on the disk."""
    ends, commits = durable_ends(disk, DATA), durable_commits(disk, DATA)
    if power:
        return Loss("power loss", ends, commits)
    unwritten = {path.rpartition("/")[0] for path in disk.unwritten() if path.endswith(LOG)}
    if not unwritten:
        return None
    directories = partition_directories(disk, DATA)
    ends = {tp: end for tp, end in ends.items() if directories[tp] in unwritten}
    if not any(tp[0] == GROUPS_TOPIC for tp, path in directories.items() if path in unwritten):
        commits = {}
    return Loss("failed syncs", ends, commits)
