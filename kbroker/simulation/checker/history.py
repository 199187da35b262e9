"""What clients asked and what they were told: the history that the checker judges.

An operation begins and ends at steps of one counter, so that it is known which were concurrent. Its outcome is OK,
FAILED (it certainly had no effect) or UNKNOWN (it may have had, or have it later: no answer came). Values are
numbers, each sent once in a run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

Place = tuple[str, int]


class Outcome(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Send:
    """One batch. `base_offset`: what the broker answered. `order`: of this producer's batches for the partition, in
    which the application sent them; a retry is the same Send. `transaction`: which of the run's, if any.
    `idempotent`: the broker must neither double nor reorder it. `attempted`: the history's step when the request that
    was answered was sent, so that the answer to a retry vouches for what the broker has then (None: the first).
    `made_of`: of a program that transforms what its `group` reads, the record (partition and offset) that each value
    was made of."""

    place: Place
    values: tuple[int, ...]
    order: int
    idempotent: bool = True
    acks: int = -1
    base_offset: int | None = None
    transaction: int | None = None
    attempted: int | None = None
    group: str = ""
    sources: tuple[tuple[Place, int], ...] = ()


@dataclass(slots=True)
class Read:
    """A record as a consumer was given it."""

    place: Place
    offset: int
    value: int


@dataclass(slots=True)
class Poll:
    """What one poll returned, in the order in which it was returned, and for each partition that was asked where
    the consumer stands after it. `transaction`: of a program that reads in a transaction."""

    reads: list[Read] = field(default_factory=list)
    positions: dict[Place, int] = field(default_factory=dict)
    committed_only: bool = False
    transaction: int | None = None


@dataclass(slots=True)
class Corrupt:
    """A consumer that stands at this offset was given bytes whose CRC is wrong, or which are no records."""

    place: Place
    offset: int
    reason: str


@dataclass(slots=True)
class Assign:
    """From here on the consumer reads these partitions from these offsets and no others. `reason`: "assign", "seek",
    "rebalance", or "reset" when the broker has said that the offset before is out of range."""

    positions: dict[Place, int]
    reason: str


@dataclass(slots=True)
class Join:
    """A member is in a generation of its group, with these partitions: it alone, until the next generation. Begun
    before it asks to join. `instance`: of a static member; another that comes with it takes its place (KIP-345)."""

    group: str
    member: str
    generation: int
    partitions: tuple[Place, ...]
    instance: str | None = None


@dataclass(slots=True)
class Commit:
    """Offsets of a group. `member` is "" for one outside of any generation."""

    group: str
    member: str
    generation: int
    offsets: dict[Place, int]
    transaction: int | None = None


@dataclass(slots=True)
class OffsetFetch:
    """What the broker says is committed; -1 for nothing."""

    group: str
    offsets: dict[Place, int] = field(default_factory=dict)


@dataclass(slots=True)
class EndTransaction:
    """The end of a transaction is asked for, once or until there is an answer."""

    transaction: int
    commit: bool


@dataclass(slots=True)
class Trim:
    """Records below `before` were asked to be deleted."""

    place: Place
    before: int


@dataclass(slots=True)
class Loss:
    """Power was lost, or a disk has rotted: of these partitions what lay at `floors` or above may be gone, a suffix
    each, and those offsets may be given out anew; of partitions that are not named, nothing. In the same way
    `commit_floors` names by (group, partition) the offset that was durably committed (-1: none): an older commit
    than that must not come back, a newer one may be gone."""

    reason: str
    floors: dict[Place, int] = field(default_factory=dict)
    commit_floors: dict[tuple[str, Place], int] = field(default_factory=dict)


@dataclass(slots=True)
class Note:
    """What a reader of the history wants to know: a fault that began or ended, a start, a kill."""

    text: str


Action = Send | Poll | Corrupt | Assign | Join | Commit | OffsetFetch | EndTransaction | Trim | Loss | Note


@dataclass(slots=True)
class Operation:
    """`begun` and `ended` are steps of the history; `ended` is None while it is under way, and for ever when its
    client has died or given up (the outcome is UNKNOWN then). Times are virtual, in nanoseconds."""

    number: int
    process: str
    action: Action
    begun: int
    begun_ns: int
    ended: int | None = None
    ended_ns: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    detail: str = ""


class History:
    """Operations in the order of their beginnings. `now_ns` is the virtual clock. `final` is set before the last
    reads: faults are over and whoever reads from the start to the end must see all that was acknowledged."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.operations: list[Operation] = []
        self.final: int | None = None
        # Told of each operation that has ended.
        self.on_end: Callable[[Operation], None] | None = None
        self._now_ns = now_ns
        self._step = 0

    @property
    def step(self) -> int:
        """The last step so far."""
        return self._step

    def begin(self, process: str, action: Action) -> Operation:
        operation = Operation(len(self.operations), process, action, self._next(), self._now_ns())
        self.operations.append(operation)
        return operation

    def end(self, operation: Operation, outcome: Outcome, detail: str = "") -> None:
        """Results belong into the action before this is called. `detail` is for the reader: an error's name."""
        assert operation.ended is None
        operation.ended, operation.ended_ns = self._next(), self._now_ns()
        operation.outcome, operation.detail = outcome, detail
        if self.on_end is not None:
            self.on_end(operation)

    def record(self, process: str, action: Action) -> Operation:
        """An operation that begins and ends at once."""
        operation = self.begin(process, action)
        self.end(operation, Outcome.OK)
        return operation

    def note(self, process: str, text: str) -> None:
        self.record(process, Note(text))

    def begin_final_reads(self) -> None:
        self.final = self._next()

    def _next(self) -> int:
        self._step += 1
        return self._step


def show(operation: Operation) -> str:
    """One line for a reader."""
    ended = "..." if operation.ended_ns is None else f"{operation.ended_ns / 1e9:.6f}"
    outcome = "" if isinstance(operation.action, Note) else f" {operation.outcome.value}"
    detail = f" ({operation.detail})" if operation.detail else ""
    begun = f"{operation.begun_ns / 1e9:.6f}"
    when = f"{operation.number:>6} {begun:>14} {ended:>14}"
    return f"{when} {operation.process:<12} {_said(operation.action)}{outcome}{detail}"


def _said(action: Action) -> str:
    match action:
        case Send(place, values, order, base_offset=base, transaction=transaction):
            return f"send {_name(place)} #{order} {list(values)}{_in(transaction)} -> {base}"
        case Poll(reads, positions):
            return f"poll {_reads(reads)} now at {_positions(positions)}"
        case Corrupt(place, offset, reason):
            return f"CORRUPT {_name(place)}@{offset}: {reason}"
        case Assign(positions, reason):
            return f"assign ({reason}) {_positions(positions)}"
        case Join(group, member, generation, partitions):
            return f"join {group} {member} generation {generation}: {', '.join(map(_name, partitions)) or 'nothing'}"
        case Commit(group, _, generation, offsets, transaction):
            return f"commit {group} generation {generation} {_positions(offsets)}{_in(transaction)}"
        case OffsetFetch(group, offsets):
            return f"committed of {group}: {_positions(offsets)}"
        case EndTransaction(transaction, commit):
            return f"{'commit' if commit else 'abort'} transaction {transaction}"
        case Trim(place, before):
            return f"delete records of {_name(place)} before {before}"
        case Loss(reason, floors, commit_floors):
            commits = ", ".join(f"{group} {_name(place)}@{at}" for (group, place), at in sorted(commit_floors.items()))
            return f"LOSS {reason}: durable below {_positions(floors)}; commits {commits or 'none'}"
        case Note(text):
            return text


def _in(transaction: int | None) -> str:
    return "" if transaction is None else f" in transaction {transaction}"


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def _positions(positions: Mapping[Place, int]) -> str:
    return ", ".join(f"{_name(place)}@{offset}" for place, offset in sorted(positions.items())) or "nothing"


def _reads(reads: Sequence[Read]) -> str:
    return " ".join(f"{_name(read.place)}@{read.offset}={read.value}" for read in reads) or "nothing"
