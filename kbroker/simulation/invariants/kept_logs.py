"""Invariant: the log of a replica is not deleted while the broker is among the replicas that the controller has stored.

The data of the coordination service may be lost or foreign meanwhile: the state of before counts until it is put back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.simulation.checker.history import TopicPartition
from kbroker.simulation.runtime.machine import DATA
from kbroker.storage.file_names import PARTITION_METADATA, parse_partition_dir, parse_stray_dir
from kbroker.storage.metadata_files import decode_topic_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kbroker.simulation.disk.disk import SimDisk

# A partition of a topic id.
Key = tuple[bytes, int]
# The directories of logs; by partition of a topic if the file with the topic id is lost.
Directories = dict[Key | TopicPartition, str]


class KeptLogs:
    """The logs that machines have, also those that are set aside, and which of them have to remain."""

    def __init__(self) -> None:
        # The directories of logs by broker, with the disk and the number of changes of its data directory.
        self._found: dict[int, tuple[SimDisk, int, Directories]] = {}
        # The logs that were found of a broker that has been a replica since then.
        self._kept: dict[Key, set[int]] = {}
        # The brokers that have left the replicas: they may delete a log late, when they are replicas again.
        self._left: dict[Key, set[int]] = {}

    def logs(self, broker: int, disk: SimDisk) -> Directories:
        """Return the directory of each log on a disk. One in place comes before one that is set aside."""
        known = self._found.get(broker)
        if known is None or known[0] is not disk or known[1] != disk.changes[DATA]:
            known = self._found[broker] = disk, disk.changes[DATA], _directories(disk)
        return known[2]

    def lose(self, broker: int) -> None:
        """Record that a machine loses power or its disk."""
        for kept in self._kept.values():
            kept.discard(broker)

    def forget(self, key: Key) -> None:
        """Record that a partition was removed."""
        self._left.setdefault(key, set()).update(self._kept.pop(key, ()))

    def note_replicas(self, key: Key, replicas: Sequence[int]) -> None:
        """Record the replicas that a transaction has written."""
        kept = self._kept.setdefault(key, set())
        removed = [broker for broker in kept if broker not in replicas]
        kept.difference_update(removed)
        self._left.setdefault(key, set()).update(removed)

    def fault(
        self, tp: TopicPartition, key: Key, replicas: Sequence[int], logs: Mapping[int, Directories]
    ) -> str | None:
        """Describe a log that was deleted although its broker is one of the replicas; None if there is none."""
        kept, left = self._kept[key], self._left[key]
        for broker in replicas:
            if broker in left:
                continue
            if key in logs[broker]:
                kept.add(broker)
            elif broker in kept and tp not in logs[broker]:
                return f"broker {broker} has deleted its log, and is one of the replicas {replicas}"
        return None


def _directories(disk: SimDisk) -> Directories:
    found: Directories = {}
    for name in sorted(disk.entries(DATA)) if disk.isdir(DATA) else ():
        path, tp, stray = f"{DATA}/{name}", parse_partition_dir(name), parse_stray_dir(name)
        index = tp.partition if tp is not None else stray
        file = f"{path}/{PARTITION_METADATA}"
        topic_id = decode_topic_id(bytes(disk.data(file))) if index is not None and disk.exists(file) else None
        if topic_id is not None and index is not None and (tp is not None or (topic_id, index) not in found):
            found[topic_id, index] = path
        elif topic_id is None and tp is not None and disk.isdir(path):
            found[tp.topic, tp.partition] = path
    return found
