"""Produce requests that wait for their acknowledgements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kbroker.replica.purgatory import DelayedOperation, Purgatory
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.fast.produce import PartitionResult, TopicResult

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition
    from protocol.fast.current_leader import CurrentLeader
    from protocol.fast.fetch import TopicKey

NO_RECORD_ERRORS: tuple[tuple[int, str | None], ...] = ()


class UnacknowledgedBatch(NamedTuple):
    """An appended batch, which is acknowledged when everything below `end_offset` is committed.

    With acks=1 it only has to be synced on this broker (flush.before.ack). Its result is already in the response, at
    `results[position]`.
    """

    partition: Partition
    end_offset: int
    results: list[PartitionResult]
    position: int
    waits_for_commit: bool


class DelayedProduce(DelayedOperation[list[TopicResult]]):
    """A request with batches that are not committed yet, or not synced yet (flush.before.ack)."""

    __slots__ = ("_batches", "_current_leader", "_listener", "_missing", "_results")

    def __init__(
        self,
        purgatory: Purgatory,
        response: list[TopicResult],
        batches: list[UnacknowledgedBatch],
        current_leader: Callable[[TopicKey, int, str], CurrentLeader | None],
        listener: str,
    ) -> None:
        super().__init__(purgatory)
        self._current_leader = current_leader
        self._listener = listener
        self._results = response
        self._batches = batches
        # The indexes in `batches` of those that are not acknowledged yet.
        self._missing = set(range(len(batches)))

    def start(self, deadline_ms: int) -> None:
        self.watch(deadline_ms)
        for number, batch in paced(enumerate(self._batches)):
            wait = batch.partition.on_committed if batch.waits_for_commit else batch.partition.on_synced
            wait(batch.end_offset, partial(self._on_acknowledged, number))

    def _on_acknowledged(self, number: int, code: ErrorCode) -> None:
        if self.is_done:
            return
        self._missing.discard(number)
        batch = self._batches[number]
        if not code and batch.waits_for_commit and batch.partition.state.is_under_min_isr:
            code = ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        if code:
            self._set_error(number, code)
        if not self._missing:
            self.complete(self._results)

    def expire(self) -> None:
        for number in paced(list(self._missing)):
            if self.is_done:
                return
            if number in self._missing:
                self._set_error(number, ErrorCode.REQUEST_TIMED_OUT)
        self.complete(self._results)

    def _set_error(self, number: int, code: ErrorCode) -> None:
        batch = self._batches[number]
        index = batch.results[batch.position][0]
        leader = None
        if code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
            leader = self._current_leader(batch.partition.topic_id, index, self._listener)
        batch.results[batch.position] = error_result(index, code, leader)


def error_result(index: int, code: ErrorCode, message: str | CurrentLeader | None = None) -> PartitionResult:
    """Return the result of a partition whose batch was not appended or not acknowledged."""
    return (index, int(code), -1, -1, -1, NO_RECORD_ERRORS, message)
