"""The text of --help, which does not depend on the version of typer."""

from typing import Annotated

import pytest
import typer

from kbroker.cli import main
from kbroker.cli.common.help import HelpCommand, command_help, format_help

app = typer.Typer()


@app.command("copy", cls=HelpCommand)
def copy(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE", help="Files to copy.")],
    target: Annotated[str | None, typer.Option("--to", "-t", metavar="DIR", help="Where.", show_default="here")] = None,
    retries: Annotated[int, typer.Option(metavar="N", min=0, max=9, envvar="RETRIES", help="How often.")] = 3,
    sync: Annotated[bool, typer.Option("--sync/--no-sync", help="Sync each file to the disk before the next.")] = True,
    mode: Annotated[str, typer.Option("--mode", "-m", metavar="MODE", hidden=True)] = "x",
) -> None:
    """Copy files. Existing files are
    replaced.

    Directories are skipped.

    Example: copy a b --to /tmp
    """


COMMAND = typer.main.get_command(app)
CONTEXT = typer.Context(COMMAND, info_name="copy")


def test_help_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    output = format_help(COMMAND, CONTEXT)
    assert output[: output.index("\n  --install-completion")] == (
        "Usage: copy [OPTIONS] SOURCE...\n"
        "\n"
        "Copy files. Existing files are replaced.\n"
        "\n"
        "Directories are skipped.\n"
        "\n"
        "Examples:\n"
        "  copy a b --to /tmp\n"
        "\n"
        "Arguments:\n"
        "  SOURCE...  Files to copy.\n"
        "\n"
        "Options:\n"
        "  -t, --to DIR          Where. [default: here]\n"
        "  --retries N           How often. [env: RETRIES; default:\n"
        "                        3]\n"
        "  --sync, --no-sync     Sync each file to the disk before\n"
        "                        the next. [default: on]"
    )


def test_hidden_options_are_not_shown() -> None:
    assert not any("--mode" in option.name for option in command_help(COMMAND, CONTEXT).options)


def test_a_group_lists_the_first_sentences_of_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  delete          Delete topics and their records." in lines
