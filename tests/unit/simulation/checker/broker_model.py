"""A model of a correct broker and its clients, which generates histories without anomalies.

Operations overlap: each begins, takes effect and ends in different steps of the model. Power losses, deletions, late
retries and rebalances happen in between.
"""

from dataclasses import dataclass, field
from random import Random

from kbroker.simulation.checker.history import (
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

PARTITIONS: tuple[TopicPartition, ...] = (("t", 0), ("t", 1))
GROUP = "g"


@dataclass
class Batch:
    """A batch of a log. A batch without values is a transaction marker."""

    base: int
    values: tuple[int, ...]
    sender: Operation | None = None

    @property
    def end(self) -> int:
        return self.base + max(1, len(self.values))

    @property
    def transaction(self) -> int | None:
        return self.sender.action.transaction if self.sender is not None else None


@dataclass
class Log:
    tp: TopicPartition
    batches: list[Batch] = field(default_factory=list)
    start: int = 0
    durable: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1].end if self.batches else max(self.start, self.durable)

    def append(self, values: tuple[int, ...], sender: Operation | None) -> int:
        self.batches.append(Batch(self.end, values, sender))
        return self.batches[-1].base

    def find(self, sender: Operation) -> Batch | None:
        return next((batch for batch in reversed(self.batches) if batch.sender is sender), None)


@dataclass
class Consumer:
    name: str
    committed_only: bool
    positions: dict[TopicPartition, int]
    polling: Operation | None = None


class BrokerModel:
    """`synced`: with flush.before.ack. `losses`: with power losses. `transactions`: with transactions."""

    def __init__(self, seed: int, turns: int, *, synced: bool, losses: bool, transactions: bool) -> None:
        self.random = Random(seed)
        self.history = History(lambda: self.history.step * 1_000)
        self._synced = synced
        self._logs = {tp: Log(tp) for tp in PARTITIONS}
        self._values = iter(range(10_000_000))
        self._open: list[Operation] = []
        self._arrived: set[int] = set()
        self._orders: dict[tuple[str, TopicPartition], int] = {}
        self._consumers = [Consumer(f"c{i}", i % 2 == 0, {}) for i in range(3)]
        self._transactions: dict[int, list[TopicPartition]] = {}
        self._aborted: set[int] = set()
        self._next_transaction = 0
        self._generation, self._durable_generation = 0, 0
        self._members: list[tuple[str, int]] = []
        self._commits: list[int] = [-1]
        self._durable_commits = 1
        self._late_commits: list[int] = []
        self._reading: Operation | None = None
        steps = [
            *(self._send, self._append, self._respond, self._commit, self._read_commit) * 2,
            *(self._poll,) * 4,
            *(self._seek, self._delete_records, self._flush, self._rebalance),
        ]
        steps += [self._begin_transaction, self._write_in_transaction, self._end_transaction] if transactions else []
        for _ in range(turns):
            self.random.choice(steps)()
            if losses and self.random.random() < 0.01:
                self._lose_power()
        self._finish()

    # Producing.

    def _send(self) -> None:
        producer = self.random.randrange(4)
        idempotent = producer != 3
        self._begin_send(f"p{producer}", idempotent, None, self.random.choice(PARTITIONS))

    def _begin_send(
        self, process: str, idempotent: bool, transaction: int | None, tp: TopicPartition
    ) -> Operation | None:
        if any(each.process == process and each.action.tp == tp for each in self._open):
            return None
        order = self._orders[process, tp] = self._orders.get((process, tp), 0) + 1
        values = tuple(next(self._values) for _ in range(self.random.randint(1, 4)))
        acks = -1 if transaction is not None or idempotent else self.random.choice([0, 1, -1])
        send = Send(tp, values, order, idempotent, acks, None, transaction)
        operation = self.history.begin(process, send)
        self._open.append(operation)
        return operation

    def _append(self) -> None:
        """Deliver a produce request, for the first time or as a retry."""
        if self._open:
            self._deliver(self.random.choice(self._open))

    def _deliver(self, operation: Operation) -> None:
        send, log = operation.action, self._logs[operation.action.tp]
        if send.idempotent and log.find(operation) is not None:
            return
        self._arrived.add(operation.number)
        if self.random.random() < 0.5:
            send.attempted = self.history.step
        send.base_offset = log.append(send.values, operation)

    def _respond(self) -> None:
        if not self._open:
            return
        operation = self.random.choice(self._open)
        self._open.remove(operation)
        send, chance = operation.action, self.random.random()
        if send.base_offset is None:
            if chance < 0.1 and operation.number not in self._arrived:
                self.history.end(operation, Outcome.FAILED)
            elif chance < 0.2:
                self.history.end(operation, Outcome.UNKNOWN)
            else:
                self._open.append(operation)
            return
        if chance < 0.15:
            send.base_offset, send.attempted = None, None
            self.history.end(operation, Outcome.UNKNOWN)
            return
        if self._synced:
            self._logs[send.tp].durable = self._logs[send.tp].end
        send.base_offset = None if send.acks == 0 else send.base_offset
        self.history.end(operation, Outcome.OK)

    def _begin_transaction(self) -> None:
        if len(self._transactions) < 2:
            self._transactions[self._next_transaction] = []
            self._next_transaction += 1

    def _write_in_transaction(self) -> None:
        """Write a batch, which is acknowledged at once."""
        if self._transactions:
            transaction = self.random.choice(list(self._transactions))
            tp = self.random.choice(PARTITIONS)
            operation = self._begin_send(f"t{transaction}", True, transaction, tp)
            if operation is not None:
                self._deliver(operation)
                self._open.remove(operation)
                self._transactions[transaction].append(tp)
                if self._synced:
                    self._logs[tp].durable = self._logs[tp].end
                self.history.end(operation, Outcome.OK)

    def _end_transaction(self) -> None:
        if not self._transactions:
            return
        transaction, commit = self.random.choice(list(self._transactions)), self.random.random() < 0.6
        operation = self.history.begin(f"t{transaction}", EndTransaction(transaction, commit))
        chance = self.random.random()
        if chance < 0.1 or not commit:
            self._aborted.add(transaction)
        for tp in dict.fromkeys(self._transactions.pop(transaction)):
            self._logs[tp].append((), None)
        self.history.end(operation, Outcome.UNKNOWN if chance < 0.2 else Outcome.OK)

    # Consuming.

    def _visible_end(self, log: Log, committed_only: bool) -> int:
        end = log.durable if self._synced else log.end
        if committed_only:
            uncommitted = [batch.base for batch in log.batches if batch.transaction in self._transactions]
            end = min([end, *uncommitted])
        return end

    def _poll(self) -> None:
        consumer = self.random.choice(self._consumers)
        if not consumer.positions:
            start = {tp: self._logs[tp].start for tp in PARTITIONS if self.random.random() < 0.7}
            consumer.positions = start
            self.history.record(consumer.name, Assign(dict(start), "assign"))
        elif consumer.polling is None:
            consumer.polling = self.history.begin(consumer.name, Poll(committed_only=consumer.committed_only))
        elif self.random.random() < 0.5 and not consumer.polling.action.positions:
            self._fetch(consumer, consumer.polling.action, self.random.randint(1, 20))
        elif consumer.polling.action.positions or self.random.random() < 0.1:
            self._end_poll(consumer)

    def _fetch(self, consumer: Consumer, poll: Poll, max_records: int) -> None:
        for tp, position in list(consumer.positions.items()):
            log = self._logs[tp]
            if not log.start <= position <= log.end:
                consumer.positions[tp] = log.start
                self.history.record(consumer.name, Assign(dict(consumer.positions), "reset"))
                consumer.polling = None
                return
        for tp, position in consumer.positions.items():
            poll.positions[tp] = self._read(tp, position, poll, max_records)

    def _read(self, tp: TopicPartition, position: int, poll: Poll, max_records: int) -> int:
        log = self._logs[tp]
        end = self._visible_end(log, poll.committed_only)
        for batch in log.batches:
            if batch.end <= position or batch.base >= end:
                continue
            if batch.values and not (poll.committed_only and batch.transaction in self._aborted):
                for offset, value in enumerate(batch.values, batch.base):
                    if offset >= position:
                        if max_records == 0:
                            return offset
                        max_records -= 1
                        poll.reads.append(Read(tp, offset, value))
            position = batch.end
        return position

    def _end_poll(self, consumer: Consumer) -> None:
        operation, consumer.polling = consumer.polling, None
        if self.random.random() < 0.05:
            self.history.end(operation, Outcome.UNKNOWN)
            return
        consumer.positions.update(operation.action.positions)
        self.history.end(operation, Outcome.OK)

    def _seek(self) -> None:
        consumer = self.random.choice(self._consumers)
        if consumer.positions and consumer.polling is None and self.random.random() < 0.2:
            tp = self.random.choice(list(consumer.positions))
            log = self._logs[tp]
            consumer.positions[tp] = self.random.randint(log.start, log.end)
            reason = self.random.choice(["seek", "rebalance"])
            self.history.record(consumer.name, Assign(dict(consumer.positions), reason))

    # The group. Members commit for the first partition.

    def _rebalance(self) -> None:
        if self.random.random() < 0.5:
            return
        self._generation += 1
        names = [f"m{self.random.randrange(5)}" for _ in range(2)]
        names = list(dict.fromkeys(names))
        joins = [
            self.history.begin(name, Join(GROUP, name, self._generation, PARTITIONS[i :: len(names)]))
            for i, name in enumerate(names)
        ]
        for join in joins:
            self.history.end(join, Outcome.OK if self.random.random() < 0.8 else Outcome.UNKNOWN)
        self._members = [*self._members[-2:], *((name, self._generation) for name in names)]
        if self._synced:
            self._durable_generation = self._generation

    def _commit(self) -> None:
        if not self._members:
            return
        member, generation = self.random.choice(self._members)
        offset = self.random.randrange(50)
        operation = self.history.begin(member, Commit(GROUP, member, generation, {PARTITIONS[0]: offset}))
        if generation != self._generation:
            self.history.end(operation, Outcome.FAILED)
        elif self.random.random() < 0.2:
            self._late_commits.append(offset)
            self.history.end(operation, Outcome.UNKNOWN)
        else:
            self._commits.append(offset)
            if self._synced:
                self._durable_commits = len(self._commits)
            self.history.end(operation, Outcome.OK)

    def _read_commit(self) -> None:
        if self._late_commits and self.random.random() < 0.3:
            self._commits.append(self._late_commits.pop(self.random.randrange(len(self._late_commits))))
        if self._reading is None:
            self._reading = self.history.begin("reader", OffsetFetch(GROUP))
        elif not self._reading.action.offsets:
            if self._synced:
                self._durable_commits = len(self._commits)
            self._reading.action.offsets = {PARTITIONS[0]: self._commits[-1]}
        else:
            self.history.end(self._reading, Outcome.OK)
            self._reading = None

    # Deletions, syncs and power losses.

    def _delete_records(self) -> None:
        log = self._logs[self.random.choice(PARTITIONS)]
        if self.random.random() < 0.1 and log.end > log.start:
            log.start = self.random.randint(log.start, self._visible_end(log, True))
            operation = self.history.begin("admin", DeleteRecords(log.tp, log.start))
            self.history.end(operation, self.random.choice([Outcome.OK, Outcome.UNKNOWN]))

    def _flush(self) -> None:
        log = self._logs[self.random.choice(PARTITIONS)]
        log.durable = log.end
        self._durable_commits = len(self._commits)
        self._durable_generation = self._generation

    def _lose_power(self) -> None:
        """Lose power. Transactional records are always durable in this model."""
        floors: dict[TopicPartition, int] = {}
        for log in self._logs.values():
            kept = max(
                (batch.end for batch in log.batches if batch.transaction is not None or not batch.values), default=0
            )
            log.durable = max(log.durable, kept, log.start)
            floors[log.tp] = log.durable
            ends = [log.durable, *(batch.end for batch in log.batches if batch.end > log.durable)]
            left = self.random.choice(ends)
            for batch in log.batches:
                if batch.base >= left and batch.sender in self._open:
                    batch.sender.action.base_offset = None
            log.batches = [batch for batch in log.batches if batch.base < left]
        commits = {(GROUP, PARTITIONS[0]): self._commits[self._durable_commits - 1]}
        self.history.record("nemesis", Loss("power", floors, commits))
        del self._commits[self.random.randint(self._durable_commits, len(self._commits)) :]
        self._generation = self.random.randint(self._durable_generation, self._generation)
        self._members.clear()

    def _finish(self) -> None:
        for operation in self._open:
            operation.action.base_offset = None
        for transaction, partitions in self._transactions.items():
            # The coordinator aborts it after its timeout.
            self._aborted.add(transaction)
            for tp in dict.fromkeys(partitions):
                self._logs[tp].append((), None)
        self._transactions.clear()
        self.history.begin_final_reads()
        for log in self._logs.values():
            log.durable = log.end
            consumer = Consumer(f"final-{log.tp[1]}", self.random.random() < 0.7, {log.tp: log.start})
            self.history.record(consumer.name, Assign(dict(consumer.positions), "assign"))
            while consumer.positions[log.tp] < log.end:
                consumer.polling = self.history.begin(consumer.name, Poll(committed_only=consumer.committed_only))
                self._fetch(consumer, consumer.polling.action, self.random.randint(1, 30))
                consumer.positions.update(consumer.polling.action.positions)
                self.history.end(consumer.polling, Outcome.OK)
