"""What the members of a share group may see, whatever fails (KIP-932).

- A record is delivered at most as often as the limit says; after a failed delivery that was confirmed, with a higher
  count, and not before its delay.
- As long as the leader remembers a lock, nobody else gets the record.
- An acknowledged record never comes back.
- In the end each record was accepted, rejected or given up by a member that had it, or it was delivered too often; and
  in the last two cases it has a dead letter.
- When an operator has set the start offset of a partition, all this begins anew with the records from there on, and
  others cannot be acknowledged any more. When a topic is created again, it begins anew with its records.

Times are those of the event loop, in seconds. What a client does not know counts in favour of the broker: a request
without a response may have had its effect.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kbroker.share.delivery import AcknowledgeType
from kbroker.simulation.checker.history import Outcome, TopicPartition, partition_name

# How far the clocks of two brokers, whose wall clocks the times of delays are, may be apart.
MAX_SKEW_S = 0.7
# Brokers count milliseconds.
TICK_S = 0.002

# The record of an offset is finished, if the acknowledgement has an effect.
FINAL = (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.GAP)
# A record that members had, and its offset.
Place = tuple[TopicPartition, int]


class BrokenShareGroup(AssertionError):
    """A record was delivered against the rules, or is gone without a reason."""


class SharePolicy(NamedTuple):
    """The configs of a group. `delays_s`: as kbroker.share.retry.delays.ms; empty if they are not checked."""

    delivery_limit: int
    lock_s: float
    delays_s: tuple[float, ...] = ()
    has_dead_letters: bool = False


class ShareDelivery(NamedTuple):
    """What one ShareFetch has delivered: the value and the delivery count of each offset.

    `leader`: the leader's object that has the locks; None if that is not certain.
    """

    member: str
    tp: TopicPartition
    records: Mapping[int, tuple[int, int]]
    begun_s: float
    ended_s: float
    leader: object = None


class Acknowledging(NamedTuple):
    """An acknowledgement of a partition's records without a response yet."""

    member: str
    tp: TopicPartition
    types: Mapping[int, int]
    begun_s: float


@dataclass(slots=True)
class _Lock:
    member: str
    leader: object
    until_s: float


@dataclass(slots=True)
class _Record:
    """`counts`: the last delivery count that each member has seen. `causes`: how many acknowledgements of each type may
    have had an effect. `finished_s`: when a final acknowledgement was confirmed. `failed_count`, `failed_s`, `due_s`:
    of the last failed delivery that was confirmed."""

    value: int
    counts: dict[str, int] = field(default_factory=dict)
    causes: Counter[int] = field(default_factory=Counter)
    lock: _Lock | None = None
    finished_s: float | None = None
    failed_count: int = 0
    failed_s: float = 0.0
    due_s: float = 0.0


class SharedRecords:
    """The records that members of one group have received, and what they have said about them."""

    def __init__(self, policy: SharePolicy) -> None:
        self._policy = policy
        self._records: dict[Place, _Record] = {}
        # How many fetches of each partition have no response: each may have delivered any record once.
        self._lost_fetches: Counter[TopicPartition] = Counter()
        # The start offsets that an operator has set, and the values of topics that were deleted.
        self._starts: dict[TopicPartition, int] = {}
        self._deleted: set[int] = set()

    # What an operator does.

    def renew(self, tp: TopicPartition, start: int) -> None:
        """The group begins with a partition at an offset. No member had a request in progress."""
        self._starts[tp] = start
        self._records = {place: record for place, record in self._records.items() if place[0] != tp}

    def delete(self, partitions: Collection[TopicPartition], values: Collection[int]) -> None:
        """A topic with these records is about to be deleted. Brokers that have not heard of it may deliver them."""
        self._deleted.update(values)
        self._starts.update(dict.fromkeys(partitions, 0))

    # What members do.

    def deliver(self, delivery: ShareDelivery) -> None:
        """Raises BrokenShareGroup."""
        for offset, (value, count) in delivery.records.items():
            record = self._records.setdefault((delivery.tp, offset), _Record(value))
            if value in self._deleted:
                continue
            if record.value in self._deleted:
                record = self._records[delivery.tp, offset] = _Record(value)
            reason = self._fault(record, value, count, delivery)
            if reason:
                what = f"{partition_name(delivery.tp)}@{offset} = {value}"
                raise BrokenShareGroup(f"{delivery.member} got {what}, delivery {count}, {reason}")
            record.counts[delivery.member] = count
            # The lock began while the fetch was in progress.
            until_s = delivery.begun_s + self._policy.lock_s
            record.lock = None if delivery.leader is None else _Lock(delivery.member, delivery.leader, until_s)

    def _fault(self, record: _Record, value: int, count: int, delivery: ShareDelivery) -> str:
        begun_s, lock = delivery.begun_s, record.lock
        if record.value != value:
            return f"which was {record.value} before"
        if not 1 <= count <= self._policy.delivery_limit:
            return f"and the limit is {self._policy.delivery_limit}"
        if record.finished_s is not None and begun_s > record.finished_s:
            return "although it was acknowledged"
        if record.failed_count and begun_s > record.failed_s:
            if count <= record.failed_count:
                return f"although delivery {record.failed_count} had failed"
            if delivery.ended_s < record.due_s - MAX_SKEW_S:
                return f"{record.due_s - delivery.ended_s:.1f} s early"
        if lock is not None and lock.leader is delivery.leader and delivery.ended_s < lock.until_s - TICK_S:
            return f"although {lock.member} had it for {lock.until_s - delivery.ended_s:.1f} s more"
        return ""

    def lose_fetch(self, partitions: Collection[TopicPartition]) -> None:
        """Count a fetch without a response."""
        self._lost_fetches.update(partitions)

    def end_session(self, member: str, partitions: Collection[TopicPartition]) -> None:
        """The session of a member ends, or may have ended: the leader may release what it has."""
        for (tp, _), record in self._records.items():
            if tp in partitions and record.lock is not None and record.lock.member == member:
                record.lock = None

    def locked(self, tp: TopicPartition, now_s: float) -> list[tuple[int, str]]:
        """Return the offsets that certainly are locked, with the members that have them."""
        return [
            (offset, record.lock.member)
            for (found, offset), record in self._records.items()
            if found == tp and record.lock is not None and record.lock.until_s > now_s
        ]

    def begin(self, member: str, tp: TopicPartition, types: Mapping[int, int], now_s: float) -> Acknowledging:
        """An acknowledgement is about to be sent. It is a reason only for records that the member has had."""
        for offset, kind in types.items():
            record = self._records[tp, offset]
            if member in record.counts:
                record.causes[kind] += 1
                if kind != AcknowledgeType.RENEW and record.lock is not None and record.lock.member == member:
                    record.lock = None
        return Acknowledging(member, tp, types, now_s)

    def end(self, acknowledging: Acknowledging, outcome: Outcome, now_s: float) -> None:
        """The response has arrived. FAILED: the acknowledgement had no effect."""
        member, tp, types, begun_s = acknowledging
        for offset, kind in types.items():
            record = self._records[tp, offset]
            if record.value in self._deleted or (tp in self._starts and member not in record.counts):
                # The record of the topic before this one.
                continue
            if outcome is Outcome.FAILED and member in record.counts:
                record.causes[kind] -= 1
            elif outcome is Outcome.OK and offset < self._starts.get(tp, 0) and kind != AcknowledgeType.RENEW:
                where = f"{partition_name(tp)}@{offset} = {record.value}"
                raise BrokenShareGroup(f"{member} acknowledged {where}, and the group starts at {self._starts[tp]}")
            elif outcome is Outcome.OK and kind in FINAL:
                # Also if it had no effect, because the record was finished before.
                record.finished_s = now_s if record.finished_s is None else min(record.finished_s, now_s)
            elif outcome is Outcome.OK and kind == AcknowledgeType.RELEASE:
                self._fail(record, record.counts.get(member, 0), begun_s, now_s)
            elif outcome is Outcome.OK and record.lock is not None and record.lock.member == member:
                record.lock.until_s = max(record.lock.until_s, begun_s + self._policy.lock_s)

    def _fail(self, record: _Record, count: int, begun_s: float, now_s: float) -> None:
        if count > record.failed_count:
            record.failed_count, record.failed_s = count, now_s
            delays_s = self._policy.delays_s
            record.due_s = begun_s + delays_s[min(count, len(delays_s)) - 1] if delays_s else 0.0

    # The end.

    def check_at_the_end(
        self,
        log: Mapping[Place, int],
        letters: Mapping[Place, int],
        *,
        is_complete: bool,
    ) -> None:
        """Check that nothing was lost, all partitions being finished. Raises BrokenShareGroup.

        `log`: the value of each record that consumers can read; `is_complete` if none was ever removed. `letters`: the
        number of dead letters of each record.
        """
        for place, value in log.items():
            if place[1] < self._starts.get(place[0], 0):
                continue
            record = self._records.get(place, _Record(value))
            name = f"{partition_name(place[0])}@{place[1]}"
            if record.value != value:
                raise BrokenShareGroup(f"{name} is {value}, and a member got {record.value}")
            is_processed = record.causes[AcknowledgeType.ACCEPT] + record.causes[AcknowledgeType.GAP] > 0
            if is_processed:
                continue
            unseen = self._policy.delivery_limit - max(record.counts.values(), default=0)
            if not record.causes[AcknowledgeType.REJECT] and unseen > self._lost_fetches[place[0]]:
                raise BrokenShareGroup(f"{name} = {value} is finished, but no member has processed it: {record}")
            if self._policy.has_dead_letters and not letters.get(place):
                raise BrokenShareGroup(f"{name} = {value} was not processed, and has no dead letter: {record}")
        unread = [place for place in self._records if place not in log and place[0] not in self._starts]
        if is_complete and unread:
            raise BrokenShareGroup(f"members got records that consumers do not see: {unread[:5]}")
        for place in letters:
            # Letters of a former life of the partition count for nothing.
            found = None if place[0] in self._starts else self._records.get(place)
            processed = found is not None and not found.causes[AcknowledgeType.REJECT] and found.finished_s is not None
            if processed and found is not None and max(found.counts.values()) < self._policy.delivery_limit:
                raise BrokenShareGroup(f"{place} was accepted, and has a dead letter: {found}")
