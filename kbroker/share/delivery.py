"""What members of a share group ask for and get, and the rules of delivery of their group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.coordinator.share.share_partition_state import DeliveryState
from kbroker.share.in_flight import Span


class AcknowledgeType:
    """What a consumer says about a record: it does not exist, was processed, is to be delivered again, is to be
    dropped, or needs more time (KIP-1222)."""

    GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)


class DeliveryPolicy(NamedTuple):
    """The configs of the group. `retry_delays_ms`: before each further delivery, the last one repeats; none if empty.

    `has_dead_letters`: records that are rejected or exhausted become dead letters (KIP-1191).
    """

    delivery_count_limit: int = 5
    lock_duration_ms: int = 30_000
    max_record_locks: int = 2000
    retry_delays_ms: tuple[int, ...] = ()
    has_dead_letters: bool = False

    def state_after_failure(self, delivery_count: int) -> DeliveryState:
        if delivery_count < self.delivery_count_limit:
            return DeliveryState.AVAILABLE
        return self.final_state

    @property
    def final_state(self) -> DeliveryState:
        return DeliveryState.ARCHIVING if self.has_dead_letters else DeliveryState.ARCHIVED

    def due_ms(self, delivery_count: int, now_ms: int) -> int:
        """Return when a record may be delivered again, after this many failed deliveries; 0 for at once."""
        if not self.retry_delays_ms:
            return 0
        return now_ms + self.retry_delays_ms[min(delivery_count, len(self.retry_delays_ms)) - 1]

    def deliverable_records(self, delivery_count: int, size: int) -> int:
        """Return how many of `size` records that were delivered this often may be delivered together.

        As in Kafka from half of the limit on, so that a record which makes consumers fail takes few others with it.
        """
        limit = self.delivery_count_limit
        throttled_from = max(2, (limit + 1) // 2)
        if self.is_last_delivery(delivery_count):
            return 1
        if delivery_count < throttled_from:
            return size
        return max(size >> delivery_count - throttled_from + 1, 1)

    def is_last_delivery(self, delivery_count: int) -> bool:
        """Return whether records that were delivered this often are delivered once more, each alone."""
        return self.delivery_count_limit > 2 and delivery_count >= self.delivery_count_limit - 1


@dataclass(slots=True)
class ShareStats:
    """Counts records. `states`: those that got a state; the changes of all states but ACQUIRED were stored before.
    `acknowledged`: by AcknowledgeType, what the leader has accepted."""

    states: Counter[DeliveryState] = field(default_factory=Counter)
    acknowledged: Counter[int] = field(default_factory=Counter)


class ScannedBatch(NamedTuple):
    """The records of a batch that consumers see, as spans of offsets in order."""

    spans: Sequence[Span]


class Acquired(NamedTuple):
    """Records that a member has acquired. `delivery_count`: this delivery included."""

    first: int
    last: int
    delivery_count: int


class Acknowledgement(NamedTuple):
    """What a member says about records: an AcknowledgeType for all of them."""

    first: int
    last: int
    type: int


@dataclass(slots=True)
class Acquisition:
    """The progress of one `acquire`. `is_full`: nothing else may be delivered with what was acquired."""

    member_id: str
    policy: DeliveryPolicy
    now_ms: int
    batch_size: int
    acquired: list[Acquired] = field(default_factory=list)
    count: int = 0
    is_full: bool = False

    def add(self, taken: Acquired) -> None:
        self.count += taken.last - taken.first + 1
        if self.acquired:
            before = self.acquired[-1]
            if (
                before.last + 1 == taken.first
                and before.delivery_count == taken.delivery_count
                and taken.last - before.first < self.batch_size
            ):
                self.acquired[-1] = before._replace(last=taken.last)
                return
        self.acquired.append(taken)
