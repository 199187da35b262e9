"""`kbroker archive list`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.cli import main


def test_the_topics_of_an_archive(tmp_path: Path, fill_archive: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    fill_archive(tmp_path)
    assert main(["archive", "list", str(tmp_path)]) == 0
    heading, columns, t, u = (line.split() for line in capsys.readouterr().out.splitlines())
    assert " ".join(heading).startswith(f"{tmp_path} 2 topics, 16 rows, 2 files of ")
    assert columns == ["TOPIC", "PARTITIONS", "ROWS", "OFFSETS", "LOST", "FILES", "SIZE", "FIRST", "LAST"]
    assert t[:6] == ["t", "1", "10", "10", "0", "1"]
    assert u[:6] == ["u", "2", "6", "8", "5", "1"]
    assert u[-2:] == ["1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"]


def test_a_directory_of_archives(tmp_path: Path, fill_archive: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        fill_archive(tmp_path / name)
    (tmp_path / "c").mkdir()
    assert main(["archive", "list", str(tmp_path), "--json"]) == 0
    archives = json.loads(capsys.readouterr().out)
    assert [archive["archive"] for archive in archives] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert [topic["topic"] for topic in archives[0]["topics"]] == ["t", "u"]
    assert archives[0]["commit"] == 2


def test_a_damaged_archive_does_not_hide_the_others(
    tmp_path: Path, fill_archive: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        fill_archive(tmp_path / name)
    next((tmp_path / "a" / "_manifest").glob("*1.json")).write_text("{}")
    assert main(["archive", "list", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert str(tmp_path / "b") in output.out
    assert output.err.startswith(f"kbroker: file://{tmp_path / 'a'}/_manifest/")
    assert output.err.count("\n") == 1
