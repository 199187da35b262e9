"""Requests for one transactional id as lines: the request, its result, and what DescribeTransactions returns then.

    add p0/1 a-0 v2 -> NONE ; Ongoing p0/1 60000 a-0
    end p0/1 commit v2 -> p0/2 ; CompleteCommit p0/2 60000

p0, p1, ... are producer ids in the order in which they appear, p? is one that does not exist, `-` is none. A number
after the slash is an epoch. `bump p0/N` sends InitProducerId until the epoch is N. `story` begins another transactional
id. The results in data/transactions-4.4.0.txt are Apache Kafka 4.4.0's, recorded by
`python -m tests.compat.wire.random_transactions`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from protocol.errors import ErrorCode

LINES = Path(__file__).parents[1] / "coordinator" / "data" / "transactions-4.4.0.txt"
# (producer id, epoch)
Producer = tuple[int, int]
NONE = (-1, -1)
UNKNOWN_ID = 424_242


class Target(Protocol):
    """One transactional id at a coordinator."""

    def init(self, timeout_ms: int, producer: Producer) -> Producer | ErrorCode: ...

    def bump(self, epoch: int) -> Producer:
        """Send InitProducerId until the producer has the epoch."""
        ...

    def add(self, producer: Producer, partition: int, version: int) -> ErrorCode: ...

    def verify(self, producer: Producer, partition: int) -> ErrorCode: ...

    def end(self, producer: Producer, committed: bool, version: int) -> Producer | ErrorCode: ...

    def describe(self) -> tuple[str, Producer, int, list[int]]:
        """Return (state, producer, timeout in ms, partitions of topic a) once no transition is in flight."""
        ...


class LineRunner:
    """Sends the requests of lines to a target."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._names = {-1: "-", UNKNOWN_ID: "p?"}

    def run(self, request: str) -> str:
        """Send a request, and return its complete line."""
        word, *arguments = request.split()
        result = self._send(word, arguments)
        state, producer, timeout_ms, partitions = self._target.describe()
        described = " ".join([state, self._format(producer), str(timeout_ms), *(f"a-{index}" for index in partitions)])
        result_text = result.name if isinstance(result, ErrorCode) else self._format(result)
        return f"{request} -> {result_text} ; {described}"

    def _send(self, word: str, arguments: list[str]) -> Producer | ErrorCode:
        target = self._target
        if word == "init":
            return target.init(int(arguments[1]), self._parse(arguments[0]))
        if word == "bump":
            return target.bump(int(arguments[0].partition("/")[2]))
        producer = self._parse(arguments[0])
        if word == "end":
            return target.end(producer, arguments[1] == "commit", int(arguments[2][1:]))
        index = int(arguments[1].partition("-")[2])
        if word == "verify":
            return target.verify(producer, index)
        return target.add(producer, index, int(arguments[2][1:]))

    def _format(self, producer: Producer) -> str:
        producer_id, epoch = producer
        if producer == NONE:
            return "-"
        if producer_id not in self._names:
            self._names[producer_id] = f"p{len(self._names) - 2}"
        return f"{self._names[producer_id]}/{epoch}"

    def _parse(self, text: str) -> Producer:
        if text == "-":
            return NONE
        name, _, epoch = text.partition("/")
        return next(id for id, known in self._names.items() if known == name), int(epoch)


def stories(path: Path = LINES) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the lines of each story."""
    name, lines = "", list[str]()
    for line in path.read_text().splitlines():
        if line.startswith("story "):
            if lines:
                yield name, lines
            name, lines = line.removeprefix("story "), []
        elif line:
            lines.append(line)
    yield name, lines
