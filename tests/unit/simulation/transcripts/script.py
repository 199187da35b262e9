"""The format of a transcript: blocks separated by a blank line, each with commands, `----` and their output.

    # Comments are kept.
    produce orders-0 a b
    read orders-0
    ----
    ok at 0
    0 a / 1 b

A block without `----` prints nothing. Rewriting a file changes only the output.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

SEPARATOR = "----"


class Block(NamedTuple):
    """`script`: the lines before the separator, including comments; `output`: the lines after it."""

    script: list[str]
    output: list[str]

    @property
    def commands(self) -> list[str]:
        return [line for line in self.script if not line.startswith("#")]

    def __str__(self) -> str:
        return "\n".join([*self.script, SEPARATOR, *self.output] if self.output else self.script)


def parse(text: str) -> list[Block]:
    blocks = []
    for part in text.strip("\n").split("\n\n"):
        lines = part.strip("\n").split("\n")
        at = lines.index(SEPARATOR) if SEPARATOR in lines else len(lines)
        blocks.append(Block(lines[:at], lines[at + 1 :]))
    return blocks


def render(blocks: list[Block]) -> str:
    return "\n\n".join(map(str, blocks)) + "\n"


async def run(text: str, run_command: Callable[[str], Awaitable[list[str]]]) -> str:
    """Return the transcript with the current output of its commands."""
    blocks = []
    for block in parse(text):
        output = [line for command in block.commands for line in await run_command(command)]
        assert all(output), f"{block.commands} printed a blank line"
        blocks.append(Block(block.script, output))
    return render(blocks)
