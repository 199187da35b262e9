"""Errors of the archive commands, and that local archives need neither Spark nor Java."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.cli import main

ERRORS = [
    (["list", "{}"], "{}: is not an archive and contains none"),
    (["list", "{}/absent"], "{}/absent: is not an archive and contains none"),
    (["describe", "{}/absent"], "{}/absent: no archive found; create one with: kbroker archive run"),
    (["describe", "{}/a", "--topic", "v"], "topic v is not in the archive; it has t, u"),
    (["describe", "{}/a", "--plot", "p.jpg"], "p.jpg: a plot is a PNG file: its name must end in .png"),
    (["compact", "{}/absent"], "{}/absent: no archive found; create one with: kbroker archive run"),
    (["compact", "{}/a", "--topic", "v"], "the archive has no rows of topic v"),
    (["compact", "{}/a", "--date", "1999-01-31"], "the archive has no rows of date 1999-01-31"),
]
USAGE_ERRORS = [
    (["compact", "{}/a", "--date", "today"], "--date must be a date such as 2026-01-31, not 'today'"),
    (["compact", "{}/a", "--target-size", "1"], "the target size must be from 4.0 KiB to 1.0 TiB, not 1"),
    (["compact", "{}/a", "--target-size", "big"], "expected a size such as 128MiB or 1GiB, not 'big'"),
    (["compact", "{}/a", "--keep-replaced", "x"], "expected a duration such as 90s, 1h30m or P1DT2H, not 'x'"),
    (["verify", "{}/a", "--offline", "--date", "2026-2-3"], "--date must be a date such as 2026-01-31, not '2026-2-3'"),
    (["run", "{}/a"], "specify either the topics to archive or --pattern REGEX"),
    (["run", "{}/a", "t", "--pattern", "b"], "specify either the topics to archive or --pattern REGEX"),
    (["run", "{}/a", "a/b"], "'a/b' is not a valid topic name"),
    (["run", "{}/a", "t", "--rate", "0"], "--rate must be positive, not 0"),
]


@pytest.mark.parametrize(
    ("status", "arguments", "message"), [*((1, *case) for case in ERRORS), *((2, *case) for case in USAGE_ERRORS)]
)
def test_errors_are_one_sentence(
    status: int,
    arguments: list[str],
    message: str,
    tmp_path: Path,
    fill_archive: Callable,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "b").mkdir()
    if arguments[0] != "list":
        fill_archive(tmp_path / "a")
    assert main(["archive", *(argument.format(tmp_path) for argument in arguments)]) == status
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"kbroker: {message.format(tmp_path)}\n"


def test_local_archives_need_neither_spark_nor_java(
    tmp_path: Path, fill_archive: Callable, add_leftovers: Callable
) -> None:
    fill_archive(tmp_path)
    leftovers = add_leftovers(tmp_path)
    program = (
        "import sys; from kbroker.cli import main\n"
        f"for command in ('list', 'describe', 'compact'): assert main(['archive', command, {str(tmp_path)!r}]) == 0\n"
        "assert not {'pyspark', 'py4j', 'pyarrow', 'matplotlib', 'kafka'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PATH": "/nowhere"}, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("there is nothing to merge\ndeleted 2 leftovers of writers that died\n")
    assert not any((tmp_path / path).exists() for path in leftovers)
