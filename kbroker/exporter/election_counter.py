"""Counts the leader elections of the controller, from the changes of its metadata image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.common import NO_LEADER

if TYPE_CHECKING:
    from kbroker.metadata.controller import Controller
    from kbroker.metadata.image import MetadataDelta, PartitionChange


class ElectionCounter:
    """`changes`: metadata changes in which leaders were elected. `elections`: partitions that got another leader.

    `unclean`: those whose new leader was neither in sync nor an eligible leader replica, and may lack committed
    records. `from_elr`: those whose new leader was an eligible leader replica (KIP-966). New partitions do not count. A
    broker counts while it is the controller.
    """

    def __init__(self, controller: Controller) -> None:
        self.changes = self.elections = self.unclean = self.from_elr = 0
        self._controller = controller

    def on_delta(self, delta: MetadataDelta) -> None:
        if not self._controller.is_elected:
            return
        elected = [change for change in delta.partitions if _is_election(change)]
        self.changes += bool(elected)
        self.elections += len(elected)
        self.unclean += sum(_is_unclean(change) for change in elected)
        self.from_elr += sum(_is_from_elr(change) for change in elected)


def _is_election(change: PartitionChange) -> bool:
    old, new = change.old, change.new
    return old is not None and new is not None and new.leader not in (old.leader, NO_LEADER)


def _is_unclean(change: PartitionChange) -> bool:
    old, new = change.old, change.new
    return old is not None and new is not None and new.leader not in old.isr and new.leader not in old.elr


def _is_from_elr(change: PartitionChange) -> bool:
    old, new = change.old, change.new
    return old is not None and new is not None and new.leader in old.elr
