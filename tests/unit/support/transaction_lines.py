"""Stories of one transactional id as lines: what is asked, what is answered, what is described afterwards.

    add p0/1 a-0 v2 -> NONE ; Ongoing p0/1 60000 a-0
    end p0/1 commit v2 -> p0/2 ; CompleteCommit p0/2 60000

p0, p1, ... are producer ids in the order in which they appear, p? is one that nobody has, `-` is none. `bump p0/N` asks
for new epochs until it is N. `story` begins another transactional id. The answers in data/transactions-4.3.1.txt are
Apache Kafka 4.3.1's, recorded by `python -m tests.compat.wire.random_transactions`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from protocol.errors import ErrorCode

LINES = Path(__file__).parents[1] / "coordinator" / "data" / "transactions-4.3.1.txt"
NONE = (-1, -1)
UNKNOWN_ID = 424_242
Who = tuple[int, int]


class Target(Protocol):
    """One transactional id at a coordinator. Who is asked in vain answers with an error code."""

    def init(self, timeout_ms: int, who: Who) -> Who | ErrorCode: ...

    def bump(self, epoch: int) -> Who:
        """New producers until one has the epoch."""
        ...

    def add(self, who: Who, partition: int, version: int) -> ErrorCode: ...

    def verify(self, who: Who, partition: int) -> ErrorCode: ...

    def end(self, who: Who, committed: bool, version: int) -> Who | ErrorCode: ...

    def described(self) -> tuple[str, Who, int, list[int]]:
        """(state, producer, timeout, partitions of topic a), once nothing is under way."""
        ...


class Teller:
    """Carries out lines on a target, and says what came of each."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._names = {-1: "-", UNKNOWN_ID: "p?"}

    def tell(self, asked: str) -> str:
        """The whole line."""
        word, *args = asked.split()
        answer = self._ask(word, args)
        state, who, timeout_ms, partitions = self._target.described()
        shown = " ".join([state, self.name(who), str(timeout_ms), *(f"a-{index}" for index in partitions)])
        return f"{asked} -> {answer.name if isinstance(answer, ErrorCode) else self.name(answer)} ; {shown}"

    def _ask(self, word: str, args: list[str]) -> Who | ErrorCode:
        target = self._target
        if word == "init":
            return target.init(int(args[1]), self.who(args[0]))
        if word == "bump":
            return target.bump(int(args[0].partition("/")[2]))
        who, what = self.who(args[0]), args[1]
        if word == "end":
            return target.end(who, what == "commit", int(args[2][1:]))
        index = int(what.partition("-")[2])
        return target.verify(who, index) if word == "verify" else target.add(who, index, int(args[2][1:]))

    def name(self, who: Who) -> str:
        producer_id, epoch = who
        if who == NONE:
            return "-"
        if producer_id not in self._names:
            self._names[producer_id] = f"p{len(self._names) - 2}"
        return f"{self._names[producer_id]}/{epoch}"

    def who(self, text: str) -> Who:
        if text == "-":
            return NONE
        name, _, epoch = text.partition("/")
        return next(id for id, known in self._names.items() if known == name), int(epoch)


def stories(path: Path = LINES) -> Iterator[tuple[str, list[str]]]:
    """(name, lines) of each."""
    name, lines = "", list[str]()
    for line in path.read_text().splitlines():
        if line.startswith("story "):
            if lines:
                yield name, lines
            name, lines = line.removeprefix("story "), []
        elif line:
            lines.append(line)
    yield name, lines
