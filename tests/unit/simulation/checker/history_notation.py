"""A notation for histories, in which the checker's tests are written.

A table has sentences, which end with a period, and below each of them histories that show it. After `=>` are the kinds
of anomalies that the checker must find in a history, or `nothing`. A longer history continues on the next line.

    A loss removes records only from its floor on.
        send 1 @0; send 2 @1; loss 1; final 1 => nothing
        send 1 @0; send 2 @1; loss 2; final 1 => unreadable at the end

There is one topic with the partitions p and q; p is meant unless q is named. The steps of a history are

    send 1 2 @0               a batch with the values 1 and 2, acknowledged at offset 0 (without @: without an offset)
    sends 1 2 @0              one batch for each value
    assign 0                  a consumer reads from offset 0 on; also `seek`, `rebalance`, `reset`; `assign p=0 q=5`
    poll 0=1 1=2 next 5       a poll that returns value 1 at offset 0 and 2 at 1, and moves to offset 5
    final 1 - 3 from 5        the final reads: values from offset 5 (0) on; `-` is an offset without a record
    commit t1, abort t1       the end of a transaction
    join 2 p q by a           member a joins generation 2 and is assigned p and q; `instance i`: a static member
    offset 5 by a in 2        member a commits offset 5 in generation 2; `offset 5`: without membership
    fetch 5                   a read of the committed offset of p
    loss 1                    a power loss; 1 is the durable end offset; `commits 5`: the durable committed offset
    delete 2                  DeleteRecords of the records before offset 2
    unsynced p                the broker has started and cannot sync the recovered records of p yet
    note kill -9              a comment

Words that modify a step: `by NAME` (the client), `in NUMBER`, `t1` (in transaction 1), `failed`, `unknown` (without a
response), `committed` (read_committed), `plain` (not idempotent), `acks NUMBER`, `order NUMBER` (of the batch),
`sources 0,1` (the input offsets of the values, for group g). `x: send 1` begins an operation, `end x @0` ends it, and
`retry x` sends it again in between.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

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
    UnsyncedStart,
)

PARTITIONS: dict[str, TopicPartition] = {"p": ("t", 0), "q": ("t", 1)}
OPTIONS = ("by", "in", "acks", "order", "next", "from", "commits", "instance", "sources")
FLAGS = ("failed", "unknown", "committed", "plain")
CONSUMER_STEPS = ("assign", "seek", "rebalance", "reset", "poll")
CLIENTS = {"final": "final", "delete": "admin", "offset": "admin", "fetch": "reader", "loss": "nemesis"}
CLIENTS |= dict.fromkeys(CONSUMER_STEPS, "consumer")


@dataclass
class Words:
    """The words of a step after its verb."""

    numbers: list[int | None] = field(default_factory=list)
    pairs: list[tuple[str, int]] = field(default_factory=list)
    partitions: list[TopicPartition] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    base_offset: int | None = None
    transaction: int | None = None

    @classmethod
    def parse(cls, words: list[str]) -> "Words":
        parsed, remaining = cls(), iter(words)
        for word in remaining:
            if word in OPTIONS:
                parsed.options[word] = next(remaining)
            elif word in FLAGS:
                parsed.flags.add(word)
            elif word in PARTITIONS:
                parsed.partitions.append(PARTITIONS[word])
            elif word.startswith("@"):
                parsed.base_offset = int(word[1:])
            elif word.startswith("t"):
                parsed.transaction = int(word[1:])
            elif "=" in word:
                key, _, number = word.partition("=")
                parsed.pairs.append((key, int(number)))
            else:
                parsed.numbers.append(None if word == "-" else int(word))
        return parsed

    @property
    def tp(self) -> TopicPartition:
        return self.partitions[0] if self.partitions else PARTITIONS["p"]

    @property
    def values(self) -> list[int]:
        return [number for number in self.numbers if number is not None]

    @property
    def outcome(self) -> Outcome:
        return Outcome.FAILED if "failed" in self.flags else Outcome.UNKNOWN if "unknown" in self.flags else Outcome.OK

    def option(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))


class Recorder:
    """Carries out the steps on `history`."""

    def __init__(self) -> None:
        self.history = History(self._now_ns)
        self._time_ns = 0
        self._orders: dict[tuple[str, TopicPartition], int] = {}
        self._open: dict[str, Operation] = {}

    def _now_ns(self) -> int:
        self._time_ns += 1_000_000
        return self._time_ns

    def run(self, step: str) -> None:
        label, _, text = step.rpartition(":")
        verb, *rest = text.split()
        if label:
            self._open[label.strip()] = self._begin(verb, Words.parse(rest))
            return
        match verb:
            case "note":
                self.history.note("nemesis", " ".join(rest))
            case "end":
                self._end(self._open[rest[0]], Words.parse(rest[1:]))
            case "retry":
                self._open[rest[0]].action.attempted = self.history.step
            case "sends":
                words = Words.parse(rest)
                for offset, value in enumerate(words.values, words.base_offset or 0):
                    self._end(self._begin("send", Words([value], options=words.options)), Words(base_offset=offset))
            case "final":
                self._final(Words.parse(rest))
            case _:
                words = Words.parse(rest)
                self._end(self._begin(verb, words), words)

    def _begin(self, verb: str, words: Words) -> Operation:
        client = words.options.get("by") or CLIENTS.get(verb, "producer")
        return self.history.begin(client, self._action(verb, words, client))

    def _action(self, verb: str, words: Words, client: str) -> Action:
        tp, values, options = words.tp, words.values, words.options
        match verb:
            case "send":
                order = words.option("order", self._orders.get((client, tp), 0))
                self._orders[client, tp] = order + 1
                sources = tuple((PARTITIONS["p"], int(at)) for at in options.get("sources", "").split(",") if at)
                return Send(tp, tuple(values), order, "plain" not in words.flags, words.option("acks", -1),
                            transaction=words.transaction, group="g" if sources else "", sources=sources)  # fmt: skip
            case "assign" | "seek" | "rebalance" | "reset":
                return Assign({PARTITIONS[key]: at for key, at in words.pairs} or {tp: values[0]}, verb)
            case "poll":
                return Poll(committed_only="committed" in words.flags, transaction=words.transaction)
            case "commit" | "abort":
                assert words.transaction is not None
                return EndTransaction(words.transaction, verb == "commit")
            case "join":
                return Join("g", client, values[0], tuple(words.partitions), options.get("instance"))
            case "offset":
                member = options.get("by", "")
                return Commit("g", member, words.option("in", -1), {tp: values[0]}, words.transaction)
            case "fetch":
                return OffsetFetch("g", {tp: values[0]})
            case "loss":
                commits = {("g", tp): words.option("commits", -1)} if "commits" in options else {}
                return Loss("power", {tp: values[0]} if values else {}, commits)
            case "unsynced":
                return UnsyncedStart((tp,))
            case "delete":
                return DeleteRecords(tp, values[0])
        raise LookupError(f"no such step: {verb}")

    def _end(self, operation: Operation, words: Words) -> None:
        if isinstance(operation.action, Send):
            operation.action.base_offset = words.base_offset
        elif isinstance(operation.action, Poll):
            reads = [(int(offset), value) for offset, value in words.pairs]
            operation.action.reads += [Read(words.tp, offset, value) for offset, value in reads]
            if reads or "next" in words.options:
                end = words.option("next", max([offset + 1 for offset, _ in reads], default=0))
                operation.action.positions[words.tp] = end
                # Further partitions returned no record.
                operation.action.positions.update(dict.fromkeys(words.partitions[1:], 0))
        self.history.end(operation, words.outcome)

    def _final(self, words: Words) -> None:
        if self.history.final is None:
            self.history.begin_final_reads()
        start = words.option("from", 0)
        self.history.record("final", Assign({words.tp: start}, "assign"))
        poll = self.history.begin("final", Poll(committed_only="committed" in words.flags))
        reads = [(str(offset), value) for offset, value in enumerate(words.numbers, start) if value is not None]
        end = Words(pairs=reads, partitions=words.partitions, options={"next": str(start + len(words.numbers))})
        self._end(poll, end)


def history(text: str) -> History:
    recorder = Recorder()
    for step in text.split(";"):
        if step.strip():
            recorder.run(step.strip())
    return recorder.history


def kinds(anomalies: list[Anomaly]) -> list[str]:
    return list(dict.fromkeys(anomaly.kind for anomaly in anomalies))


def found(text: str, *, durable: bool = False, compacted: dict[str, int] | None = None) -> str:
    """Return the kinds of the anomalies of a history, after checking that a report shows each of them."""
    recorded = history(text)
    anomalies = check(recorded, durable=durable, compacted=compacted)
    shown = render(recorded, anomalies)
    for anomaly in anomalies:
        assert anomaly.kind.upper() in shown
        assert anomaly.operations
    return ", ".join(kinds(anomalies)) or "nothing"


def cases(table: str) -> "pytest.MarkDecorator":
    """Parametrize a test with the `steps` and the `expected` kinds of each history of a table."""
    return pytest.mark.parametrize(("steps", "expected"), list(_cases(table)))


def _cases(table: str) -> Iterator[Any]:
    title = steps = ""
    for line in filter(None, map(str.strip, table.splitlines())):
        if line.endswith("."):
            assert not steps, f"without expected kinds: {steps}"
            title = line[:-1]
            continue
        before, arrow, expected = line.partition("=>")
        steps += f" {before}"
        if arrow:
            yield pytest.param(steps, expected.strip(), id=title)
            steps = ""
    assert not steps, f"without expected kinds: {steps}"
