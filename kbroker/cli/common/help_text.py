"""The text of `--help`: plain, and the same in every version of typer."""

import shutil
import textwrap
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_WIDTH = 100


class HelpRow(NamedTuple):
    """An argument, option or command with its description."""

    name: str
    text: str


class CommandHelp(NamedTuple):
    """The parts of a command's help. Examples are command lines."""

    usage: str
    paragraphs: list[str]
    examples: list[str]
    arguments: list[HelpRow]
    options: list[HelpRow]
    commands: list[HelpRow]


def help_text(parts: CommandHelp) -> str:
    """Return the help of a command as text for the terminal."""
    width = min(shutil.get_terminal_size().columns, MAX_WIDTH)
    blocks = [f"Usage: {parts.usage}", *(textwrap.fill(paragraph, width) for paragraph in parts.paragraphs)]
    if parts.examples:
        blocks.append("\n".join(["Examples:", *(f"  {example}" for example in parts.examples)]))
    for title, rows in (("Arguments", parts.arguments), ("Options", parts.options), ("Commands", parts.commands)):
        if rows:
            blocks.append("\n".join([f"{title}:", *_format_rows(rows, width)]))
    return "\n\n".join(blocks)


def _format_rows(rows: Sequence[HelpRow], width: int) -> Iterator[str]:
    """Yield lines with texts in a second column. A long name has its own line."""
    indent = min(max(len(row.name) for row in rows), 30) + 4
    for name, text in rows:
        lines = textwrap.wrap(text, max(width - indent, 30)) or [""]
        if len(name) + 4 > indent:
            yield f"  {name}"
            yield " " * indent + lines[0]
        else:
            yield f"  {name}".ljust(indent) + lines[0]
        yield from (" " * indent + line for line in lines[1:])
