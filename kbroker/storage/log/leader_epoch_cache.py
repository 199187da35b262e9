"""The start offsets of a log's leader epochs, with which a follower finds where its log diverges (KIP-101, KIP-279)."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochCache:
    """Entries (epoch, start offset), both strictly increasing."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """`entries` are in order, as in leader-epoch-checkpoint."""
        # Tuples: most logs have one epoch, and a list of one takes 32 bytes more.
        self._epochs: tuple[int, ...] = ()
        self._starts: tuple[int, ...] = ()
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The latest epoch; -1 if there is none."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def assign(self, epoch: int, offset: int) -> None:
        """Start an epoch at `offset`. Removes entries that contradict this: their part of the log was truncated."""
        if epoch < 0 or offset < 0:
            raise ValueError(f"leader epoch {epoch} at offset {offset}")
        epochs, starts = self._epochs, self._starts
        if epochs and epochs[-1] == epoch and offset >= starts[-1]:
            return
        kept = len(epochs)
        while kept and (epochs[kept - 1] >= epoch or starts[kept - 1] >= offset):
            kept -= 1
        self._epochs, self._starts = (*epochs[:kept], epoch), (*starts[:kept], offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Return the largest known epoch up to `epoch`, and its end offset, as OffsetForLeaderEpoch does.

        The latest epoch ends at the log end offset. Returns (-1, -1) if `epoch` is newer than all, or none is known;
        (`epoch`, first start offset) if it is older than all.
        """
        epochs = self._epochs
        if not epochs or epoch < 0 or epoch > epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        if epoch == epochs[-1]:
            return epoch, log_end_offset
        slot = bisect_right(epochs, epoch)
        return (epochs[slot - 1] if slot else epoch), self._starts[slot]

    def truncation_offset(self, log_end_offset: int, diverging: tuple[int, int]) -> int:
        """Return the offset up to which this log may agree with the leader's (KIP-595). The next fetch checks that.

        `diverging`: the (epoch, end offset) of the leader's log for the largest epoch up to the last fetched one. If
        this log has no record of that epoch, everything after its own largest earlier epoch differs: the high watermark
        plays no part, since committed records may lie above it and uncommitted ones below.
        """
        leader_epoch, leader_end_offset = diverging
        own_epoch, own_end_offset = self.end_offset_for(leader_epoch, log_end_offset)
        if own_end_offset < 0:
            return min(leader_end_offset, log_end_offset)
        if own_epoch != leader_epoch:
            return min(own_end_offset, log_end_offset)
        return min(own_end_offset, leader_end_offset, log_end_offset)

    def epoch_for(self, offset: int) -> int:
        """Return the epoch of the record at `offset`; -1 if it is not known."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else NO_EPOCH

    def truncate_from_end(self, offset: int) -> None:
        """Remove the epochs that begin at `offset` or later, because the log was truncated there."""
        slot = bisect_left(self._starts, offset)
        self._epochs, self._starts = self._epochs[:slot], self._starts[:slot]

    def truncate_from_start(self, offset: int) -> None:
        """Apply a new log start offset: remove older epochs, and move the start of its epoch to it."""
        slot = bisect_right(self._starts, offset)
        if slot:
            self._epochs, self._starts = self._epochs[slot - 1 :], (offset, *self._starts[slot:])
