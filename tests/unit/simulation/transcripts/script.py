"""The form of a transcript: blocks with a blank line between them, each of commands, `----` and what they must print.

    # Comments stay where they are.
    produce orders-0 a b
    read orders-0
    ----
    ok at 0
    0 a / 1 b

A block without `----` must print nothing. Rewriting a file changes what it expects and nothing else.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

SEPARATOR = "----"


class Block(NamedTuple):
    """`said`: lines before the separator, comments included; `expected`: lines after it."""

    said: list[str]
    expected: list[str]

    @property
    def commands(self) -> list[str]:
        return [line for line in self.said if not line.startswith("#")]

    def __str__(self) -> str:
        return "\n".join([*self.said, SEPARATOR, *self.expected] if self.expected else self.said)


def parse(text: str) -> list[Block]:
    blocks = []
    for part in text.strip("\n").split("\n\n"):
        lines = part.strip("\n").split("\n")
        at = lines.index(SEPARATOR) if SEPARATOR in lines else len(lines)
        blocks.append(Block(lines[:at], lines[at + 1 :]))
    return blocks


def render(blocks: list[Block]) -> str:
    return "\n\n".join(map(str, blocks)) + "\n"


async def played(text: str, run: Callable[[str], Awaitable[list[str]]]) -> str:
    """The transcript with what its commands print now."""
    blocks = []
    for block in parse(text):
        printed = [line for command in block.commands for line in await run(command)]
        assert all(printed), f"a blank line, printed by {block.commands}"
        blocks.append(Block(block.said, printed))
    return render(blocks)
