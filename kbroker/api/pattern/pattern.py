"""Regular expressions that clients send, in the syntax of RE2 as Kafka takes them: matched in linear time.

Python's own would go back and forth for years over some patterns, and the loop waits. Here a pattern becomes a small
program (Thompson's construction; pattern_syntax.py reads it) of which all threads run side by side, with what each step
led to remembered. Captures and greed mean nothing to whole matches.
"""

from collections.abc import Generator

from kbroker.api.pattern.syntax import (
    EDGE,
    Assertion,
    Chars,
    Node,
    Repeat,
    Sequence,
    Several,
    invalid,
    kind_of,
    parse,
)

# Bounds on what a pattern makes us do: instructions of its program, and remembered steps.
MAX_PROGRAM = 1_000
MAX_REMEMBERED = 10_000
# Instructions that are looked at before others have their turn: some milliseconds.
SLICE = 20_000

SPLIT, JUMP, MATCH = "split", "jump", "match"
Instruction = Chars | Assertion | tuple[str, int, int]
States = frozenset[int]


class Pattern:
    """A compiled pattern. Raises KafkaError (INVALID_REGULAR_EXPRESSION)."""

    def __init__(self, text: str) -> None:
        self._program: list[Instruction] = []
        self._emit(parse(text))
        self._add((MATCH, 0, 0))
        # (states before it, kind of the character before, character) -> states after it
        self._steps: dict[tuple[States, int, str], States] = {}
        self._looked_at = 0

    def matches(self, text: str) -> bool:
        """Whether the whole text matches, at one go."""
        work = self.matching(text)
        while True:
            try:
                next(work)
            except StopIteration as end:
                return bool(end.value)

    def matching(self, text: str) -> Generator[None, None, bool]:
        """As `matches`; stops now and then, so that others have their turn."""
        states: States = frozenset((0,))
        before = EDGE
        for char in text:
            key = (states, before, char)
            found = self._steps.get(key)
            if found is None:
                found = self._step(states, before, char)
                if len(self._steps) >= MAX_REMEMBERED:
                    self._steps.clear()
                self._steps[key] = found
                if self._looked_at > SLICE:
                    self._looked_at = 0
                    yield
            if not found:
                return False
            states, before = found, kind_of(char)
        return any(self._program[at] == (MATCH, 0, 0) for at in self._closure(states, before, EDGE))

    # Matching.

    def _step(self, states: States, before: int, char: str) -> States:
        program, after = self._program, set()
        for at in self._closure(states, before, kind_of(char)):
            instruction = program[at]
            if isinstance(instruction, Chars) and instruction.has(char):
                after.add(at + 1)
        return frozenset(after)

    def _closure(self, states: States, before: int, behind: int) -> set[int]:
        """Where threads get to without a character, between characters of these kinds."""
        reached: set[int] = set()
        left = list(states)
        while left:
            at = left.pop()
            if at in reached:
                continue
            reached.add(at)
            instruction = self._program[at]
            if isinstance(instruction, Assertion):
                if instruction.holds(before, behind):
                    left.append(at + 1)
            elif isinstance(instruction, tuple) and instruction[0] is not MATCH:
                left += instruction[1:] if instruction[0] is SPLIT else instruction[1:2]
        self._looked_at += len(reached)
        return reached

    # Compiling.

    def _add(self, instruction: Instruction) -> int:
        if len(self._program) >= MAX_PROGRAM:
            raise invalid("it is too large")
        self._program.append(instruction)
        return len(self._program) - 1

    def _emit(self, node: Node) -> None:
        if isinstance(node, Sequence):
            for part in node.parts:
                self._emit(part)
        elif isinstance(node, Several):
            self._emit_several(node.options)
        elif isinstance(node, Repeat):
            self._emit_repeat(node)
        else:
            self._add(node)

    def _emit_several(self, options: list[Node]) -> None:
        ends = []
        for option in options[:-1]:
            split = self._add((SPLIT, 0, 0))
            self._emit(option)
            ends.append(self._add((JUMP, 0, 0)))
            self._program[split] = (SPLIT, split + 1, len(self._program))
        self._emit(options[-1])
        for end in ends:
            self._program[end] = (JUMP, len(self._program), 0)

    def _emit_repeat(self, node: Repeat) -> None:
        for _ in range(node.least):
            self._emit(node.part)
        if node.most is None:
            split = self._add((SPLIT, 0, 0))
            self._emit(node.part)
            self._add((JUMP, split, 0))
            self._program[split] = (SPLIT, split + 1, len(self._program))
            return
        splits = []
        for _ in range(node.most - node.least):
            splits.append(self._add((SPLIT, 0, 0)))
            self._emit(node.part)
        for split in splits:
            self._program[split] = (SPLIT, split + 1, len(self._program))
