"""Produce requests that wait for their acknowledgements."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kbroker.replica.purgatory import DelayedOperation, Purgatory
from protocol.errors import ErrorCode
from protocol.fast.produce import PartitionResult, TopicResult

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition

NO_RECORD_ERRORS: tuple[tuple[int, str | None], ...] = ()


class UnacknowledgedBatch(NamedTuple):
    """An appended batch, which is acknowledged when the high watermark reaches `end_offset`.

    Its result is already in the response, at `results[position]`.
    """

    partition: Partition
    end_offset: int
    results: list[PartitionResult]
    position: int


class DelayedProduce(DelayedOperation[list[TopicResult]]):
    """A request with batches that are not committed yet, or not synced yet (flush.before.ack)."""

    __slots__ = ("_batches", "_missing", "_results")

    def __init__(self, purgatory: Purgatory, response: list[TopicResult], batches: list[UnacknowledgedBatch]) -> None:
        super().__init__(purgatory)
        self._results = response
        self._batches = batches
        # The indexes in `batches` of those that are not acknowledged yet.
        self._missing = set(range(len(batches)))

    def start(self, deadline_ms: int) -> None:
        self.watch(deadline_ms)
        for number, batch in enumerate(self._batches):
            batch.partition.on_committed(batch.end_offset, partial(self._on_committed, number))

    def _on_committed(self, number: int, code: ErrorCode) -> None:
        if self.is_done:
            return
        self._missing.discard(number)
        if code:
            self._set_error(number, code)
        if not self._missing:
            self.complete(self._results)

    def expire(self) -> None:
        for number in self._missing:
            self._set_error(number, ErrorCode.REQUEST_TIMED_OUT)
        self.complete(self._results)

    def _set_error(self, number: int, code: ErrorCode) -> None:
        batch = self._batches[number]
        index = batch.results[batch.position][0]
        batch.results[batch.position] = error_result(index, code)


def error_result(index: int, code: ErrorCode, message: str | None = None) -> PartitionResult:
    """Return the result of a partition whose batch was not appended or not acknowledged."""
    return (index, int(code), -1, -1, -1, NO_RECORD_ERRORS, message)
