"""docs/cli.md, generated from the command tree:

python -m kbroker.cli.reference > docs/cli.md
"""

from collections.abc import Iterator, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from kbroker.cli.app import app, load_command
from kbroker.cli.commands import COMMANDS
from kbroker.cli.common.help import command_help
from kbroker.cli.common.help_text import CommandHelp, HelpRow

_INTRO = """\
# Command line reference

```console
$ kbroker --help
$ kbroker topics create --help
```

Every command has `--help`, and `kbroker help COMMAND` prints the same. This page has the same texts and is generated
by `python -m kbroker.cli.reference`.

- Commands that talk to a broker work with any Kafka broker. With Apache Kafka, `kbroker cluster roll` and `kbroker
  delayed` do not work, `kbroker topics alter` cannot remove partitions, and commands that run plans, such as `kbroker
  brokers balance`, can only show them (`--dry-run`). The broker's address is `--bootstrap` or `KBROKER_BOOTSTRAP`.
- Results go to standard output, notes and errors to standard error. In a pipe, tables are aligned columns without
  color.
- `--json` prints JSON. A thing has the same fields in all commands: `topic`, `partition`, `broker` and `group` are
  names and numbers; `topics`, `partitions`, `brokers`, `offsets` and `configs` are lists; a config has `name`, `value`
  and often `source`; names that end in `_ms` are milliseconds, times since 1970; null is what is not known. An error is
  `{"error": {"message": ..., "code": ..., "hint": ...}}` on standard error, without `code` (Kafka's name) and `hint` if
  there is none. Only `produce --json` is about its input.
- `--watch` shows the same again every 2 seconds, `--watch 10` every 10: a screen in a terminal, in a pipe one block
  after another, with `--json` one line each time.
- `DURATION` is `90s`, `1h30m` or ISO 8601 (`P1DT2H`), with the units ms, s, m, h, d and w. `SIZE` is `4096`, `64MiB` or
  `1GiB`: KiB, MiB, GiB, TiB, also written kB, MB, GB, TB or k, m, g, t, are powers of 1024. `TIME` is ISO 8601 (default
  UTC), milliseconds since the epoch, or a duration ago.
- Values of configs may have the same units, in the command line and in config files: `retention.ms=7d`,
  `segment.bytes=64MiB`, `log.retention.hours=3d`. They are sent and stored as plain numbers in the config's own unit.
- A command that waits for longer than 1.5 s says what for on standard error: `waiting: orders-0: KAFKA_STORAGE_ERROR`.
- Shell completion, also of topics, groups and configs: `kbroker --install-completion`.

| exit status | |
|---|---|
| 0 | success |
| 1 | failure: of a broker, of the network, of a check; what was printed before it is valid |
| 2 | wrong usage: nothing was done |
| 130 | interrupted with Ctrl-C |
"""
_END = "Read on: [guide.md](guide.md) for the commands by task, [troubleshooting.md](troubleshooting.md).\n"
# The same for every command.
_COMMON_OPTIONS = ("--help", "--install-completion", "--show-completion")


def page() -> str:
    """Return the Markdown of the page."""
    context = typer.Context(typer.main.get_command(app), info_name="kbroker")
    parts = [_INTRO, "| command | |", "|---|---|"]
    parts += [f"| [`kbroker {name}`](#kbroker-{name}) | {source.help} |" for name, source in COMMANDS.items()]
    parts.append("")
    for name in COMMANDS:
        parts += _command_section(load_command(name), name, context, "##")
    return "\n".join([*parts, _END])


def _command_section(command: Any, name: str, parent: typer.Context, heading: str) -> Iterator[str]:
    context = typer.Context(command, parent=parent, info_name=name)
    parts = command_help(command, context)
    yield f"{heading} {context.command_path}\n"
    for paragraph in parts.paragraphs:
        yield f"{_text(paragraph)}\n"
    if isinstance(command, TyperGroup):
        for inner in command.list_commands(context):
            yield from _command_section(command.get_command(context, inner), inner, context, heading + "#")
        return
    yield _code(parts.usage, *parts.examples)
    yield from _parameter_table(parts)


def _code(usage: str, *examples: str) -> str:
    lines = [usage, *(["\n# Examples" if len(examples) > 1 else "\n# Example"] if examples else []), *examples]
    return "\n".join(["```sh", *lines, "```\n"])


def _parameter_table(parts: CommandHelp) -> Iterator[str]:
    rows: Sequence[HelpRow] = [
        *parts.arguments,
        *(option for option in parts.options if not any(name in option.name for name in _COMMON_OPTIONS)),
    ]
    if rows:
        yield "| option | |\n|---|---|"
        yield from (f"| `{_cell(row.name)}` | {_cell(_text(row.text))} |" for row in rows)
        yield ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _text(text: str) -> str:
    return text.replace("*", "\\*").replace("<", "\\<")


if __name__ == "__main__":
    print(page(), end="")
