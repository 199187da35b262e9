"""Builds histories for tests, operation by operation."""

from collections.abc import Mapping, Sequence

from kbroker.simulation.checker import Anomaly, check, render
from kbroker.simulation.checker.history import (
    Action,
    Assign,
    Commit,
    DeleteRecords,
    EndTransaction,
    History,
    Join,
    Loss,
    OffsetFetch,
    Operation,
    Outcome,
    Poll,
    Read,
    Send,
    TopicPartition,
)

OK, FAILED, UNKNOWN = Outcome.OK, Outcome.FAILED, Outcome.UNKNOWN

P: TopicPartition = ("t", 0)
Q: TopicPartition = ("t", 1)


class HistoryBuilder:
    """Methods such as `send` add an operation that begins and ends at once; `sending` begins it and `sent` ends it.

    reads are (offset, value) pairs of `tp`.
    """

    def __init__(self) -> None:
        self.history = History(self._now_ns)
        self._time = 0
        self._orders: dict[tuple[str, TopicPartition], int] = {}

    def _now_ns(self) -> int:
        self._time += 1_000_000
        return self._time

    # Producing.

    def send(self, *values: int, at: int | None = None, outcome: Outcome = OK, by: str = "producer",
             tp: TopicPartition = P, order: int | None = None, **more) -> Operation:  # fmt: skip
        operation = self.sending(*values, by=by, tp=tp, order=order, **more)
        return self.sent(operation, at, outcome)

    def sending(self, *values: int, by: str = "producer", tp: TopicPartition = P, order: int | None = None, **more):
        """Begin a send."""
        order = self._orders.get((by, tp), 0) if order is None else order
        self._orders[by, tp] = order + 1
        return self.history.begin(by, Send(tp, values, order, **more))

    def sent(self, operation: Operation, at: int | None = None, outcome: Outcome = OK) -> Operation:
        assert isinstance(operation.action, Send)
        operation.action.base_offset = at
        self.history.end(operation, outcome)
        return operation

    # Consuming.

    def assign(self, at: int | Mapping[TopicPartition, int], by: str = "consumer", reason: str = "assign") -> None:
        self.history.record(by, Assign({P: at} if isinstance(at, int) else dict(at), reason))

    def poll(self, *reads: tuple[int, int], to: int | None = None, by: str = "consumer", tp: TopicPartition = P,
             outcome: Outcome = OK, **more) -> Operation:  # fmt: skip
        operation = self.history.begin(by, Poll(**more))
        return self.polled(operation, *reads, to=to, tp=tp, outcome=outcome)

    def polling(self, by: str = "consumer", **more) -> Operation:
        return self.history.begin(by, Poll(**more))

    def polled(self, operation: Operation, *reads: tuple[int, int], to: int | None = None, tp: TopicPartition = P,
               outcome: Outcome = OK) -> Operation:  # fmt: skip
        poll = operation.action
        assert isinstance(poll, Poll)
        poll.reads += [Read(tp, offset, value) for offset, value in reads]
        if to is None and reads:
            to = max(offset for offset, _ in reads) + 1
        if to is not None:
            poll.positions[tp] = to
        self.history.end(operation, outcome)
        return operation

    def ends_with(self, *values: int | None, start: int = 0, tp: TopicPartition = P, **more) -> None:
        """Add the final reads, which return these values from the start. None is an offset without a record."""
        if self.history.final is None:
            self.history.begin_final_reads()
        reads = [(offset, value) for offset, value in enumerate(values, start) if value is not None]
        self.assign({tp: start}, by="final")
        self.poll(*reads, to=start + len(values), by="final", tp=tp, **more)

    # Groups.

    def join(
        self,
        member: str,
        generation: int,
        *partitions: TopicPartition,
        outcome: Outcome = OK,
        instance: str | None = None,
    ):
        operation = self.joining(member, generation, *partitions, instance=instance)
        self.history.end(operation, outcome)
        return operation

    def joining(
        self, member: str, generation: int, *partitions: TopicPartition, instance: str | None = None
    ) -> Operation:
        return self.history.begin(member, Join("g", member, generation, partitions, instance))

    def commit(self, offset: int, member: str = "", generation: int = -1, outcome: Outcome = OK, **more) -> Operation:
        operation = self.committing(offset, member, generation, **more)
        self.history.end(operation, outcome)
        return operation

    def committing(
        self, offset: int, member: str = "", generation: int = -1, tp: TopicPartition = P, **more
    ) -> Operation:
        return self.history.begin(member or "admin", Commit("g", member, generation, {tp: offset}, **more))

    def committed(self, offset: int, outcome: Outcome = OK) -> None:
        self.done(self.history.begin("asker", OffsetFetch("g", {P: offset})), outcome)

    # Losses, deletions, transactions.

    def loss(self, floor: int | None = None, tp: TopicPartition = P, commits: int | None = None) -> None:
        """Add a power loss. `floor`: the durable end offset. `commits`: the durable committed offset of the group."""
        floors = {} if floor is None else {tp: floor}
        self.history.record("nemesis", Loss("power", floors, {} if commits is None else {("g", P): commits}))

    def delete_records(self, before: int, outcome: Outcome = OK) -> None:
        operation = self.history.begin("admin", DeleteRecords(P, before))
        self.history.end(operation, outcome)

    def end(self, transaction: int, commit: bool, outcome: Outcome = OK) -> None:
        operation = self.history.begin("producer", EndTransaction(transaction, commit))
        self.history.end(operation, outcome)

    def do(self, process: str, action: Action) -> None:
        self.history.record(process, action)

    def done(self, operation: Operation, outcome: Outcome = OK) -> None:
        self.history.end(operation, outcome)

    # Checking.

    def anomalies(self, *, durable: bool = False) -> list[Anomaly]:
        return check(self.history, durable=durable)

    def kinds(self, *, durable: bool = False) -> list[str]:
        """Return the kinds of the anomalies, without duplicates, after checking that a report shows each of them."""
        found = self.anomalies(durable=durable)
        shown = render(self.history, found)
        for one in found:
            assert one.kind.upper() in shown
            assert one.operations
        return list(dict.fromkeys(one.kind for one in found))


def kinds(anomalies: Sequence[Anomaly]) -> list[str]:
    return list(dict.fromkeys(one.kind for one in anomalies))
