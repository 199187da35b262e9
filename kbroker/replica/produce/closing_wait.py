"""Makes appends to a closing partition wait until it is removed or open again.

Every client retries a refused append. But if one batch of a request is refused, KafkaJS 2.2 sends all of them again,
and chooses new partitions for records without a key. So a batch that was stored returns with other records, and is out
of sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kbroker.common import KafkaError
from kbroker.replica.produce.record_validation import InspectedBatch, ValidatedBatch
from kbroker.replica.produce.record_validator import AppendMustWait, RecordValidator
from protocol.errors import ErrorCode

# The decision usually takes some milliseconds. Clients wait at least 30 s for a response.
MAX_WAIT_S = 5.0


class ClosingPartition(Protocol):
    """The part of a Partition that this module uses."""

    @property
    def is_closing(self) -> bool: ...

    def add_closing_listener(self, callback: Callable[[], None]) -> None: ...

    def remove_closing_listener(self, callback: Callable[[], None]) -> None: ...


class NeedsClosingDecision(AppendMustWait):
    """The partition refuses records for now. `wait` raises NOT_LEADER_OR_FOLLOWER if it still does after MAX_WAIT_S."""

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

        self._partition.add_closing_listener(wake)
        timer = loop.call_later(MAX_WAIT_S, wake)
        try:
            await decided
        finally:
            timer.cancel()
            self._partition.remove_closing_listener(wake)
        if self._partition.is_closing:
            # Clients refresh their metadata and retry.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._validated
