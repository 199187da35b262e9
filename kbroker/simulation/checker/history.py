"""The history of a run: the operations of all clients and their outcomes, which the checker verifies.

An operation begins and ends at steps of one counter, which shows which operations were concurrent. Its outcome is OK,
FAILED (it had no effect) or UNKNOWN (no response arrived: it may have had an effect, or may have one later). These are
Jepsen's ok, fail and info. Values are numbers; each is sent once per run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from kbroker.authorization.acl import Acl, ResourceType
from kbroker.authorization.acl import Operation as AclOperation

# The name of a topic and the index of a partition.
TopicPartition = tuple[str, int]


class Outcome(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Send:
    """One batch; a retry belongs to the same Send. `base_offset`: from the response. `order`: the number of the batch
    among those that this producer sent to the partition. `transaction`: the number of the transaction in the run, if
    any. `acks`: 0 if an acknowledgement promises nothing; with several replicas also for acks=1, since the next leader
    may not have the batch. `idempotent`: the broker must neither duplicate nor reorder the batch. `attempted`: the step
    at which the acknowledged attempt was sent; None if it was the first attempt. For a consume-transform-produce
    program, `sources` is the input record (partition and offset) of each value, which its consumer group `group`
    read."""

    tp: TopicPartition
    values: tuple[int, ...]
    order: int
    idempotent: bool = True
    acks: int = -1
    base_offset: int | None = None
    transaction: int | None = None
    attempted: int | None = None
    group: str = ""
    sources: tuple[tuple[TopicPartition, int], ...] = ()


@dataclass(slots=True)
class Read:
    """A record that a consumer received."""

    tp: TopicPartition
    offset: int
    value: int


@dataclass(slots=True)
class Poll:
    """The records that one poll returned, in order, and the consumer's position after it in each requested partition.
    `committed_only`: with read_committed. `transaction`: the consumer's open transaction, if it reads in one."""

    reads: list[Read] = field(default_factory=list)
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    committed_only: bool = False
    transaction: int | None = None


@dataclass(slots=True)
class Corrupt:
    """A consumer at this offset received data with a wrong CRC or an invalid format."""

    tp: TopicPartition
    offset: int
    reason: str


@dataclass(slots=True)
class Assign:
    """From now on the consumer reads exactly these partitions, from these offsets. `reason`: "assign", "seek",
    "rebalance", or "reset" after an OFFSET_OUT_OF_RANGE."""

    positions: dict[TopicPartition, int]
    reason: str


@dataclass(slots=True)
class Join:
    """A member joined a generation of its group and was assigned these partitions exclusively. The operation begins
    before its JoinGroup request. `instance`: the group.instance.id of a static member; a new member with the same id
    replaces it (KIP-345)."""

    group: str
    member: str
    generation: int
    partitions: tuple[TopicPartition, ...]
    instance: str | None = None


@dataclass(slots=True)
class Own:
    """A member of the consumer protocol now has these partitions, and no others, in an epoch."""

    group: str
    member: str
    epoch: int
    partitions: tuple[TopicPartition, ...]


@dataclass(slots=True)
class Fenced:
    """The coordinator did not know a member, or its epoch, whose last heartbeat with a response was sent this long ago:
    no timeout can have passed since then."""

    group: str
    member: str
    epoch: int
    silent_s: float


@dataclass(slots=True)
class Commit:
    """An OffsetCommit, or TxnOffsetCommit if it has a `transaction`. `member` is "" for a commit without membership."""

    group: str
    member: str
    generation: int
    offsets: dict[TopicPartition, int]
    transaction: int | None = None


@dataclass(slots=True)
class OffsetFetch:
    """A read of committed offsets; -1 if none is committed."""

    group: str
    offsets: dict[TopicPartition, int] = field(default_factory=dict)


@dataclass(slots=True)
class EndTransaction:
    """A transaction's EndTxn request, including its retries."""

    transaction: int
    commit: bool


@dataclass(slots=True)
class DeleteRecords:
    """A DeleteRecords request for the records before offset `before`; -1 is the high watermark."""

    tp: TopicPartition
    before: int


@dataclass(slots=True)
class Loss:
    """A power loss or bit rot. In each partition of `floors` a suffix of the records at or above that offset may be
    lost, and their offsets may be assigned again; other partitions lose nothing. `commit_floors` is the durable
    committed offset by (group, partition), -1 for none: newer commits may be lost, older ones must not come back."""

    reason: str
    floors: dict[TopicPartition, int] = field(default_factory=dict)
    commit_floors: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)


@dataclass(slots=True)
class UnsyncedStart:
    """The broker serves these partitions although it could not sync their recovered records yet. Under
    flush.before.ack consumers do not receive them before it has, which ends the operation."""

    partitions: tuple[TopicPartition, ...]


# An operation on a resource.
Right = tuple[AclOperation, ResourceType, str]
# An ACL, or "password" or "quota" with the name of a user.
SettingKey = Acl | tuple[str, str]


@dataclass(slots=True)
class SecurityChange:
    """A change of what users may do. `value`: 1 for an ACL, the number of a password, a quota in bytes per second; 0
    without it. `attempts_lost`: an attempt had no response, and may be carried out at any time."""

    key: SettingKey
    value: int
    attempts_lost: bool = False


@dataclass(slots=True)
class GuardedRequest:
    """A request that needs one of the `rights`, or a login if there are none; FAILED if the broker refused it for lack
    of rights. `password`: the number of the one that the connection has logged in with. `broker`: 0 if another broker
    may have decided. `newest_record_ns`: when the last record in the response was written."""

    name: str
    user: str
    password: int
    broker: int
    rights: tuple[Right, ...] = ()
    produced_bytes: int = 0
    throttle_ms: int = 0
    newest_record_ns: int = 0


@dataclass(slots=True)
class OutOfDate:
    """A broker did not run, or could not keep up with the coordination service."""

    broker: int


@dataclass(slots=True)
class Note:
    """A comment for the reader of the history: a fault that began or ended, a start, a kill."""

    text: str


Action = (
    Send
    | Poll
    | Corrupt
    | Assign
    | Join
    | Own
    | Fenced
    | Commit
    | OffsetFetch
    | EndTransaction
    | DeleteRecords
    | Loss
    | UnsyncedStart
    | SecurityChange
    | GuardedRequest
    | OutOfDate
    | Note
)


A_co = TypeVar("A_co", bound=Action, covariant=True)


@dataclass(slots=True)
class OperationOf(Generic[A_co]):
    """An operation with an action of this class.

    `begun` and `ended` are steps of the history. `ended` is None while the operation is pending, and stays None if its
    client died or gave up; the outcome is then UNKNOWN. Times are virtual, in nanoseconds.
    """

    number: int
    process: str
    action: A_co
    begun: int
    begun_ns: int
    ended: int | None = None
    ended_ns: int | None = None
    outcome: Outcome = Outcome.UNKNOWN
    detail: str = ""


Operation = OperationOf[Action]


class History:
    """Operations, ordered by their beginnings. `now_ns` is the virtual clock. `final` is the step at which the final
    reads begin: faults are over, and reads from start to end must return all acknowledged records."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.operations: list[Operation] = []
        self.final: int | None = None
        # Called with each operation that has ended.
        self.on_end: Callable[[Operation], None] | None = None
        self._now_ns = now_ns
        self._step = 0

    @property
    def step(self) -> int:
        """The last step so far."""
        return self._step

    def begin(self, process: str, action: Action) -> Operation:
        operation: Operation = OperationOf(len(self.operations), process, action, self._next(), self._now_ns())
        self.operations.append(operation)
        return operation

    def end(self, operation: Operation, outcome: Outcome, detail: str = "") -> None:
        """End an operation. Set the results in its action first. `detail` is for the reader, for example an error
        name."""
        assert operation.ended is None
        operation.ended, operation.ended_ns = self._next(), self._now_ns()
        operation.outcome, operation.detail = outcome, detail
        if self.on_end is not None:
            self.on_end(operation)

    def record(self, process: str, action: Action) -> Operation:
        """Add an operation that begins and ends at once."""
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
    """Format an operation as one line of a report."""
    ended = "..." if operation.ended_ns is None else f"{operation.ended_ns / 1e9:.6f}"
    outcome = "" if isinstance(operation.action, Note) else f" {operation.outcome.value}"
    detail = f" ({operation.detail})" if operation.detail else ""
    begun = f"{operation.begun_ns / 1e9:.6f}"
    when = f"{operation.number:>6} {begun:>14} {ended:>14}"
    return f"{when} {operation.process:<12} {_format_action(operation.action)}{outcome}{detail}"


def _format_action(action: Action) -> str:
    match action:
        case Send(tp, values, order, base_offset=base, transaction=transaction):
            return f"send {partition_name(tp)} #{order} {list(values)}{_in(transaction)} -> {base}"
        case Poll(reads, positions):
            return f"poll {_reads(reads)} now at {_positions(positions)}"
        case Corrupt(tp, offset, reason):
            return f"CORRUPT {partition_name(tp)}@{offset}: {reason}"
        case Assign(positions, reason):
            return f"assign ({reason}) {_positions(positions)}"
        case Join(group, member, generation, partitions):
            return f"join {group} {member} generation {generation}: {_names(partitions) or 'nothing'}"
        case Own(group, member, epoch, partitions):
            return f"own {group} {member} epoch {epoch}: {_names(partitions) or 'nothing'}"
        case Fenced(group, member, epoch, silent_s):
            return f"fenced {group} {member} epoch {epoch} after {silent_s:.1f} s"
        case Commit(group, _, generation, offsets, transaction):
            return f"commit {group} generation {generation} {_positions(offsets)}{_in(transaction)}"
        case OffsetFetch(group, offsets):
            return f"committed of {group}: {_positions(offsets)}"
        case EndTransaction(transaction, commit):
            return f"{'commit' if commit else 'abort'} transaction {transaction}"
        case DeleteRecords(tp, before):
            return f"delete records of {partition_name(tp)} before {before}"
        case Loss(reason, floors, commit_floors):
            rows = sorted(commit_floors.items())
            commits = ", ".join(f"{group} {partition_name(tp)}@{at}" for (group, tp), at in rows)
            return f"LOSS {reason}: durable below {_positions(floors)}; commits {commits or 'none'}"
        case UnsyncedStart(partitions):
            return f"started without a sync of {_names(partitions)}"
        case SecurityChange(key, value, attempts_lost):
            name = str(key) if isinstance(key, Acl) else " of ".join(key)
            return f"{name}: {value}{', attempts lost' if attempts_lost else ''}"
        case GuardedRequest(name, user, password, broker, throttle_ms=throttle_ms):
            return f"{name} as {user} with password {password} at {broker or 'any broker'}, throttled {throttle_ms} ms"
        case OutOfDate(broker):
            return f"broker {broker} is out of date"
        case Note(text):
            return text


def _in(transaction: int | None) -> str:
    return "" if transaction is None else f" in transaction {transaction}"


def partition_name(tp: TopicPartition) -> str:
    return f"{tp[0]}-{tp[1]}"


def _names(partitions: Sequence[TopicPartition]) -> str:
    return ", ".join(map(partition_name, partitions))


def _positions(positions: Mapping[TopicPartition, int]) -> str:
    return ", ".join(f"{partition_name(tp)}@{offset}" for tp, offset in sorted(positions.items())) or "nothing"


def _reads(reads: Sequence[Read]) -> str:
    return " ".join(f"{partition_name(read.tp)}@{read.offset}={read.value}" for read in reads) or "nothing"
