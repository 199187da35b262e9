"""Appends to a partition that is about to be removed, or open again: they wait until that is decided.

Refusing them at once would be simpler, and every client retries then. But KafkaJS 2.2 sends all batches of a request
again if one of them is refused. It distributes records without a key anew for that, so a batch that was stored returns
with other records, and is out of sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kbroker.common import KafkaError
from kbroker.replica.produce.record_validation import InspectedBatch, ValidatedBatch
from kbroker.replica.produce.record_validator import AppendMustWait, RecordValidator
from protocol.errors import ErrorCode

# Usually it takes some milliseconds. Clients wait for at least 30 s.
MAX_WAIT_S = 5.0


class ClosingPartition(Protocol):
    """The part of a Partition that this module uses."""

    @property
    def is_closing(self) -> bool: ...

    def when_decided(self, callback: Callable[[], None]) -> None: ...

    def forget_decided(self, callback: Callable[[], None]) -> None: ...


class NeedsDecision(AppendMustWait):
    """The partition refuses records. `wait` raises NOT_LEADER_OR_FOLLOWER if it still does after MAX_WAIT_S."""

    def __init__(self, partition: ClosingPartition, validated: ValidatedBatch | InspectedBatch | None) -> None:
        super().__init__("the partition is closing")
        self._partition = partition
        self._validated = validated

    async def wait(self, validator: RecordValidator) -> ValidatedBatch | InspectedBatch | None:
        loop = validator.environment.loop
        decided = loop.create_future()

        def wake() -> None:
            if not decided.done():
                decided.set_result(None)

        self._partition.when_decided(wake)
        timer = loop.call_later(MAX_WAIT_S, wake)
        try:
            await decided
        finally:
            timer.cancel()
            self._partition.forget_decided(wake)
        if self._partition.is_closing:
            # Clients refresh their metadata and retry.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._validated
