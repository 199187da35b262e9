"""What a command line imports: start-up time is mostly imports, so the heavy ones must not come back."""

import os
import subprocess
import sys

import pytest

from kbroker.cli.commands import COMMANDS

PROGRAM = """
import sys
from kbroker.cli import main
status = main(sys.argv[1:])
print("status", status)
print(*sys.modules)
"""


def imported_by(*args: str, **variables: str) -> tuple[int, set[str]]:
    """Run a command line in a new process; returns its exit status and the modules that it imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *args],
        capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL, env=os.environ | variables,
    )  # fmt: skip
    *_, status, modules = done.stdout.splitlines()
    return int(status.removeprefix("status ")), set(modules.split())


def command_packages(modules: set[str]) -> set[str]:
    """Return the packages of kbroker.cli that hold commands."""
    packages = {module.split(".")[2] for module in modules if module.startswith("kbroker.cli.")}
    return packages - {"app", "commands", "common"}


LIBRARIES = {
    "rich",
    "pygments",
    "kafka",
    "asyncio",
    "kazoo",
    "pydantic",
    "construct",
    "prometheus_client",
    "pyspark",
    "pyarrow",
}


def test_help_imports_no_command() -> None:
    status, modules = imported_by("--help")
    assert status == 0
    assert not modules & {*LIBRARIES, "typer"}
    assert {module for module in modules if module.startswith("kbroker.")} == {
        "kbroker.cli",
        "kbroker.cli.commands",
        "kbroker.cli.common",
        "kbroker.cli.common.help_text",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_imports_no_library(name: str) -> None:
    status, modules = imported_by(name, "--help")
    assert status == 0
    assert not modules & LIBRARIES


@pytest.mark.parametrize(
    ("args", "packages"),
    [
        (["topics", "list"], {"topics", "configs"}),
        (["produce", "t", "v"], {"records"}),
        (["consume", "t"], {"records"}),
        (["groups", "list"], {"groups"}),
        (["configs", "list"], {"configs"}),
        (["transactions", "list"], {"transactions"}),
    ],
)
def test_a_command_imports_its_own_package_and_none_of_the_broker(args: list[str], packages: set[str]) -> None:
    status, modules = imported_by(*args, "--bootstrap", "127.0.0.1:1")
    assert status == 1
    assert command_packages(modules) == packages
    assert not modules & LIBRARIES
    ours = {module.split(".")[1] for module in modules if module.startswith("kbroker.")}
    assert ours == {"cli", "client", "common", "units"}
    codecs = set() if packages == {"records"} else {"protocol.records"}
    assert not modules & {*codecs, "protocol.fast"}


@pytest.mark.parametrize("words", ["topics describe o", "groups describe g", "consume o"])
def test_a_tab_imports_no_library_and_none_of_the_broker(words: str) -> None:
    variables = {"COMP_WORDS": "\n".join(["kbroker", *words.split()]), "COMP_CWORD": str(len(words.split()))}
    status, modules = imported_by(_KBROKER_COMPLETE="complete_bash", KBROKER_BOOTSTRAP="127.0.0.1:1", **variables)
    assert status == 0
    assert not modules & LIBRARIES
    ours = {module.split(".")[1] for module in modules if module.startswith("kbroker.")}
    assert ours == {"cli", "client", "common", "units"}
