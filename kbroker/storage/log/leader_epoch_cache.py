"""Where each leader epoch of a partition begins, to find where two logs diverge (KIP-101, KIP-279)."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochCache:
    """(epoch, start offset) entries, both strictly increasing."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        """From entries in order, as leader-epoch-checkpoint has them."""
        self._epochs: list[int] = []
        self._starts: list[int] = []
        for epoch, start in entries:
            self.assign(epoch, start)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    @property
    def latest(self) -> int:
        """The newest epoch, -1 if none is known."""
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def assign(self, epoch: int, offset: int) -> None:
        """An epoch begins at `offset`. Entries that contradict it, of a log that was cut off, are removed."""
        if epoch < 0 or offset < 0:
            raise ValueError(f"leader epoch {epoch} at offset {offset}")
        epochs, starts = self._epochs, self._starts
        if epochs and epochs[-1] == epoch and offset >= starts[-1]:
            return
        while epochs and (epochs[-1] >= epoch or starts[-1] >= offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The answer of OffsetForLeaderEpoch: the largest known epoch up to `epoch`, and where it ends.

        The newest epoch ends at the log end offset. (-1, -1) if `epoch` is newer than all or nothing is
        known; (`epoch`, first start offset) if it is older than all.
        """
        epochs = self._epochs
        if not epochs or epoch < 0 or epoch > epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        if epoch == epochs[-1]:
            return epoch, log_end_offset
        place = bisect_right(epochs, epoch)
        return (epochs[place - 1] if place else epoch), self._starts[place]

    def epoch_for(self, offset: int) -> int:
        """The epoch in which the record at `offset` was written, -1 if it is not known."""
        place = bisect_right(self._starts, offset)
        return self._epochs[place - 1] if place else NO_EPOCH

    def truncate_from_end(self, offset: int) -> None:
        """The log has been cut off at `offset`: epochs that begin there or later never were."""
        place = bisect_left(self._starts, offset)
        del self._epochs[place:], self._starts[place:]

    def truncate_from_start(self, offset: int) -> None:
        """The log begins at `offset` now: older epochs are gone, and the one it is in begins there."""
        place = bisect_right(self._starts, offset)
        if place:
            del self._epochs[: place - 1], self._starts[: place - 1]
            self._starts[0] = offset

    def clear(self) -> None:
        self._epochs.clear()
        self._starts.clear()
