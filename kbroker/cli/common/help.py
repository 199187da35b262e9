"""The parts of the help of typer's commands. docs/cli.md is generated from the same."""

import inspect
from typing import Any

from typer.core import TyperCommand, TyperGroup

from kbroker.cli.common.help_text import CommandHelp, HelpRow, help_text

EXAMPLE = "Example: "
# Of --watch without a number of seconds.
DEFAULT_WATCH_S = 2


def command_help(command: Any, ctx: Any) -> CommandHelp:
    """Return the help of a click command in its context."""
    paragraphs = [
        " ".join(paragraph.split()) for paragraph in inspect.cleandoc(command.help or "").split("\n\n") if paragraph
    ]
    params = [param for param in command.get_params(ctx) if not getattr(param, "hidden", False)]
    arguments = [param for param in params if param.param_type_name == "argument"]
    pieces = [ctx.command_path, "[OPTIONS]", *map(_argument_name, arguments)]
    is_group = isinstance(command, TyperGroup)
    if is_group:
        pieces.append("COMMAND")
    return CommandHelp(
        " ".join(pieces),
        [paragraph for paragraph in paragraphs if not paragraph.startswith(EXAMPLE)],
        [paragraph.removeprefix(EXAMPLE) for paragraph in paragraphs if paragraph.startswith(EXAMPLE)],
        [HelpRow(_argument_name(param), _with_details(param)) for param in arguments if param.help],
        [HelpRow(_option_name(param), _with_details(param)) for param in params if param not in arguments],
        [HelpRow(name, _summary(command.get_command(ctx, name))) for name in command.list_commands(ctx)]
        if is_group
        else [],
    )


def _argument_name(param: Any) -> str:
    name: str = param.metavar or param.name.upper()
    if param.nargs != 1 and "..." not in name:
        name += "..."
    return name if param.required or name.startswith("[") else f"[{name}]"


def _option_name(param: Any) -> str:
    # Short names first, and the same order for --help, which click keeps in a set.
    names = ", ".join(sorted([*param.opts, *param.secondary_opts], key=lambda name: name.startswith("--")))
    return names if param.is_flag or param.count else f"{names} {param.metavar or param.name.upper()}"


def _with_details(param: Any) -> str:
    """Return the help of a parameter with its environment variable and default."""
    details = []
    if param.envvar:
        details.append(f"env: {param.envvar}")
    if isinstance(param.show_default, str):
        details.append(f"default: {param.show_default}")
    elif param.show_default and param.default not in (None, False, ""):
        details.append(f"default: {'on' if param.default is True else param.default}")
    if param.param_type_name == "option" and param.required:
        details.append("required")
    return " ".join([*([param.help] if param.help else []), *([f"[{'; '.join(details)}]"] if details else [])])


def _summary(command: Any) -> str:
    """Return the first sentence of a command's help."""
    first_paragraph = " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
    return first_paragraph.split(". ")[0].rstrip(".") + "."


def format_help(command: Any, ctx: Any) -> str:
    """Return the help of a command as text for the terminal."""
    return help_text(command_help(command, ctx))


class HelpCommand(TyperCommand):
    """A command with the help of this module."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert the value of --watch [SECONDS]: typer has no options with an optional value."""
        for option in self.params:
            if option.metavar == "[SECONDS]" and (name := option.opts[0]) in args:
                following = [*args[args.index(name) + 1 :], ""][0]
                if not following[:1].isdigit() and following[:1] != ".":
                    args = [f"{name}={DEFAULT_WATCH_S}" if arg == name else arg for arg in args]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(format_help(self, ctx))


class HelpGroup(TyperGroup):
    """A group of commands with the help of this module."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write(format_help(self, ctx))
