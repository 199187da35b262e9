"""What one consumer is given, poll after poll: no record is skipped, none comes again, no position jumps.

What Kafka permits. An Assign begins anew: after a seek where the program wants, after a rebalance at what the group has
committed, which may be behind what this member has read (at least once) or ahead of it (others have read on). So
between polls with such an Assign nothing follows; inside of what one assignment gives everything does. A reset is
different: the program has not asked for it, the broker has said that the position is out of range. It may go
backwards only after a Loss, and forwards only over what was deleted or lost. A deletion that was never answered may be
undone by a crash: somebody who was told in between that a position is out of range goes back to where the log begins.

Offsets need not follow one another: control batches and aborted transactions take some. A jump is an anomaly when it
passes a record that certainly was there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kbroker.simulation.checker.anomaly import Anomaly, anomaly, partition_name, shorten
from kbroker.simulation.checker.compaction import LastOffsets
from kbroker.simulation.checker.history import Assign, Operation, Outcome, Place, Poll, Send
from kbroker.simulation.checker.index import NEVER, Index, Observation, PartitionIndex
from kbroker.simulation.checker.transactions import TransactionOutcome, transaction_outcomes


@dataclass(slots=True)
class _Position:
    """Where a consumer stands: the next offset that it is to be given. `since`: by what operation. `proven`: it has
    read the record before, so that the position was in range."""

    next: int
    since: Operation
    proven: bool


@dataclass(slots=True)
class _Jump:
    """From one position to another, over records or not."""

    place: Place
    low: int
    high: int
    before: Operation
    operation: Operation
    committed_only: bool


class _Consumer:
    """One process, walked through once; what is wrong for certain, and the jumps, which have to be judged."""

    def __init__(self, index: Index) -> None:
        self.anomalies: list[Anomaly] = []
        self.jumps: list[_Jump] = []
        self._index = index
        self._standing: dict[Place, _Position] = {}
        self._committed_only = False

    def take(self, operation: Operation) -> None:
        action = operation.action
        if isinstance(action, Assign):
            self._assign(operation, action)
        elif isinstance(action, Poll):
            self._poll(operation, action)

    def _assign(self, operation: Operation, assign: Assign) -> None:
        if operation.outcome is not Outcome.OK:
            self._standing.clear()
            return
        if assign.reason == "reset":
            for place, position in assign.positions.items():
                self._reset(operation, place, position)
        old, self._standing = self._standing, {}
        for place, position in assign.positions.items():
            stood = old.get(place)
            stays = assign.reason == "reset" and stood is not None and stood.next == position
            self._standing[place] = stood if stays and stood else _Position(position, operation, False)

    def _reset(self, operation: Operation, place: Place, position: int) -> None:
        stood = self._standing.get(place)
        if stood is None or position == stood.next:
            return
        if position > stood.next:
            self._jump(place, stood, position, operation)
        elif stood.proven:
            partition = self._index.partition(place)
            until = NEVER if operation.ended is None else operation.ended
            lost = partition.may_have_lost(stood.next - 1, stood.since.begun, until)
            if not lost and not partition.has_unresolved_deletion(stood.next, until):
                self._wrong(
                    "unfounded reset",
                    f"was reset from offset {stood.next} of {partition_name(place)} to {position} as out of range, "
                    "although nothing had been lost",
                    stood,
                    operation,
                )

    def _poll(self, operation: Operation, poll: Poll) -> None:
        self._committed_only = poll.committed_only
        place: Place | None = None
        stood: _Position | None = None
        expected = 0
        for read in poll.reads:
            if read.place is not place:
                self._leave(place, stood, expected, operation)
                place = read.place
                stood = self._standing.get(place)
                if stood is None:
                    stood = self._standing[place] = _Position(read.offset, operation, False)
                expected = stood.next
            if read.offset != expected:
                assert stood is not None
                if read.offset < expected:
                    self._wrong(
                        "backward poll",
                        f"was given offset {read.offset} of {partition_name(read.place)} when {expected} was next",
                        stood,
                        operation,
                    )
                else:
                    self._jump(read.place, _Position(expected, stood.since, False), read.offset, operation)
            expected = read.offset + 1
        self._leave(place, stood, expected, operation)
        if operation.outcome is not Outcome.UNKNOWN:
            # One that has failed says where it stands all the same.
            self._settle(operation, poll)
        else:
            # What else it got is not known, so nothing follows for the next poll.
            for place in [*dict.fromkeys(read.place for read in poll.reads), *poll.positions]:
                self._standing.pop(place, None)

    def _leave(self, place: Place | None, stood: _Position | None, expected: int, operation: Operation) -> None:
        if place is not None and stood is not None:
            stood.next, stood.since, stood.proven = expected, operation, True

    def _settle(self, operation: Operation, poll: Poll) -> None:
        for place, position in poll.positions.items():
            stood = self._standing.get(place)
            if stood is None:
                self._standing[place] = _Position(position, operation, False)
            elif position != stood.next:
                if position < stood.next:
                    self._wrong(
                        "backward poll",
                        f"stands at offset {position} of {partition_name(place)} after it had come to {stood.next}",
                        stood,
                        operation,
                    )
                else:
                    self._jump(place, stood, position, operation)
                stood.next, stood.since = position, operation

    def _jump(self, place: Place, stood: _Position, high: int, operation: Operation) -> None:
        self.jumps.append(_Jump(place, stood.next, high, stood.since, operation, self._committed_only))

    def _wrong(self, kind: str, text: str, stood: _Position, operation: Operation) -> None:
        self.anomalies.append(anomaly(kind, f"{operation.process} {text}.", stood.since, operation))


def poll_order_anomalies(index: Index) -> Iterator[Anomaly]:
    """Backward polls, unfounded resets, skipped records; inside one poll and from one to the next."""
    jumps: list[_Jump] = []
    for operations in index.consumer_operations.values():
        consumer = _Consumer(index)
        for operation in operations:
            consumer.take(operation)
        yield from consumer.anomalies
        jumps += consumer.jumps
    yield from _skips(index, jumps)


def _skips(index: Index, jumps: list[_Jump]) -> Iterator[Anomaly]:
    passed = [(jump, _passed(index.partition(jump.place), jump)) for jump in jumps]
    wanted: dict[Place, dict[int, None]] = {}
    for jump, offsets in passed:
        wanted.setdefault(jump.place, {}).update(dict.fromkeys(offsets))
    seen = index.observations(wanted)
    ends = transaction_outcomes(index)
    last = {jump.place: _last_offsets(index.partition(jump.place)) for jump, _ in passed}
    for jump, offsets in passed:
        skipped = [
            proof
            for offset in offsets
            if (proof := _proof(index, jump, seen.by_offset.get((jump.place, offset), []), ends, last[jump.place]))
            is not None
        ]
        if skipped:
            reset = isinstance(jump.operation.action, Assign)
            yield anomaly(
                "reset over records" if reset else "skipped records",
                f"{jump.operation.process} {'was reset' if reset else 'moved'} from offset {jump.low} of "
                f"{partition_name(jump.place)} to {jump.high} and skipped {shorten([one.value for one in skipped])} at "
                f"{shorten([one.offset for one in skipped])}.",
                jump.before,
                jump.operation,
                skipped[0].operation,
            )


def _last_offsets(partition: PartitionIndex) -> LastOffsets:
    return LastOffsets(partition.at, partition.keys)


def _passed(partition: PartitionIndex, jump: _Jump) -> list[int]:
    """Offsets in the jump that are known to have held a record at some time. Where nothing was ever lost, what a
    deletion has taken needs no further look."""
    low = jump.low
    if not partition.possible_losses:
        low = max(low, partition.deletion_bound(NEVER if jump.operation.ended is None else jump.operation.ended))
    return partition.known_between(low, jump.high)


def _proof(
    index: Index, jump: _Jump, observations: list[Observation], ends: dict[int, TransactionOutcome], last: LastOffsets
) -> Observation | None:
    """A sighting of a record that was there for certain when it was passed, and that the consumer may see: no Loss
    lies between, it was not deleted or compacted before, and its transaction, if any, is committed."""
    partition = index.partition(jump.place)
    ended = NEVER if jump.operation.ended is None else jump.operation.ended
    for one in observations:
        sender = index.senders.get(one.value)
        if partition.may_have_lost(one.offset, min(one.since, jump.operation.begun), max(one.until, ended)):
            continue
        if partition.may_be_deleted(one.offset, one.since if sender is None else sender.begun, ended):
            continue
        if last.is_superseded(one.value, one.offset):
            continue
        if not jump.committed_only or _is_visible(sender, one, ends):
            return one
    return None


def _is_visible(sender: Operation | None, sighting: Observation, ends: dict[int, TransactionOutcome]) -> bool:
    """With read_committed."""
    transaction = sender.action.transaction if sender is not None and isinstance(sender.action, Send) else None
    if transaction is None or ends.get(transaction) is TransactionOutcome.COMMITTED:
        return True
    return isinstance(sighting.operation.action, Poll) and sighting.operation.action.committed_only
