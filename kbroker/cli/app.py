"""The command tree, and the exit statuses of exceptions.

A command's module is imported only when that command runs or completes: importing all of them takes longer than most
commands run. Until then the command is represented by a placeholder with its help.
"""

import importlib
import os
import sys
from typing import Annotated, Any

import typer

from kbroker.cli.commands import COMMANDS, HELP
from kbroker.cli.common.completion import rejoin_words
from kbroker.cli.common.errors import CliError, exception_text, print_error, usage_error, use_json_errors
from kbroker.cli.common.help import HelpCommand, HelpGroup

INTERRUPTED = 130
# What typer prints for values that are no numbers.
TYPE_ERRORS = {"is not a valid int range": "is not a whole number", "is not a valid float range": "is not a number"}


def load_command(name: str) -> Any:
    """Import a command and return it as a click command."""
    source = COMMANDS[name]
    from kbroker.cli.common.options import expand_options

    definition = getattr(importlib.import_module(source.module), source.name)
    parent = typer.Typer()
    if isinstance(definition, typer.Typer):
        for command in definition.registered_commands:
            assert command.callback is not None
            command.cls, command.callback = HelpCommand, expand_options(command.callback)
        parent.add_typer(definition, name=name, help=source.help, cls=HelpGroup, no_args_is_help=True)
    else:
        parent.command(name, cls=HelpCommand)(expand_options(definition))
    return typer.main.get_group(parent).commands[name]


class LazyGroup(HelpGroup):
    """A group whose commands are placeholders. A command replaces its placeholder when it runs or completes."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, remaining = super().resolve_command(ctx, args)
        return name, load_command(name) if name in COMMANDS else command, remaining


app = typer.Typer(
    name="kbroker",
    cls=LazyGroup,
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_set: bool) -> None:
    if is_set:
        from kbroker.cli.shell import version

        version()
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def _placeholder() -> None:
    raise AssertionError("replaced by the command in LazyGroup.resolve_command")


for _name, _source in COMMANDS.items():
    app.command(_name, help=_source.help)(_placeholder)


def run(args: list[str]) -> int:
    """Run one command line; returns the exit status."""
    rejoin_words(os.environ)
    # That of `produce` is the format of its input.
    use_json_errors("--json" in args and args[:1] != ["produce"])
    try:
        status = _run(args)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        pass
    except Exception as error:
        print_error(exception_text(error))
    finally:
        use_json_errors(False)
    try:
        sys.stdout.flush()
    except OSError:
        # The interpreter would fail to write the rest at its end, print a traceback and exit with 120.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _run(args: list[str]) -> int:
    try:
        _require_utf8(args)
        status = app(args, prog_name="kbroker", standalone_mode=False)
        return status if isinstance(status, int) else 0
    except CliError as error:
        print_error(error)
        return error.status
    except typer.TyperException as error:
        return _print_usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as error:
        # typer and rich exit the process when the reader of a pipe has closed it.
        return error.code if isinstance(error.code, int) else 1


def _require_utf8(args: list[str]) -> None:
    """Raise CliError for names and configs that are not UTF-8. Only records may contain arbitrary bytes."""
    for arg in args if args[:1] != ["produce"] else args[1:2]:
        try:
            arg.encode()
        except UnicodeEncodeError:
            raise usage_error(f"not UTF-8: {arg!r}") from None


def _print_usage_error(error: typer.TyperException) -> int:
    # If no command follows a group, its help is raised as an exception. typer recognizes it by the class name, too.
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())
    else:
        context = getattr(error, "ctx", None)
        path = context.command_path if context is not None else "kbroker"
        message = error.format_message()
        for text, better in TYPE_ERRORS.items():
            message = message.replace(text, better)
        print_error(usage_error(message, hint=f"see {path} --help"))
    return error.exit_code
