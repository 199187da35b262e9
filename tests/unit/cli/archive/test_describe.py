"""`kbroker archive describe`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.cli import main
from kbroker.cli.archive.tables import format_utc


def test_a_complete_description(
    tmp_path: Path, fill_archive: Callable, add_leftovers: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_archive(tmp_path)
    leftovers = add_leftovers(tmp_path)
    assert main(["archive", "describe", str(tmp_path), "--partitions", "--files", "--groups"]) == 0
    output = capsys.readouterr()
    rows = [line.split() for line in output.out.splitlines()]
    assert ["committed", "only", "no"] in rows
    assert ["last", "commit", "2024-03-01T00:00:00Z"] in rows
    assert ["u", "0", "5..7", "3", "0", "5", "1", "30bytes"] in [row[:8] for row in rows]
    assert ["u", "1", "5..9", "3", "2"] in [row[:5] for row in rows]
    assert ["u", "0", "0..4", "5", "retention"] in rows
    assert ["u", "retention.ms", "60000"] in rows
    assert ["readers", "u", "1", "6"] in rows
    assert sum(row[0].endswith(".parquet") for row in rows if row) == 2
    assert output.err == f"files left by writers that died: {', '.join(leftovers)}\n"


def test_one_topic_as_json(tmp_path: Path, fill_archive: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    fill_archive(tmp_path)
    assert main(["archive", "describe", str(tmp_path), "--json", "--topic", "u", "--files"]) == 0
    description = json.loads(capsys.readouterr().out)
    (topic,) = description["topics"]
    assert (topic["topic"], topic["partitions"], topic["offsets_without_record"]) == ("u", 2, 2)
    assert topic["gaps"] == [{"topic": "u", "partition": 0, "start": 0, "end": 5, "reason": "retention"}]
    assert [file["partitions"]["1"] for file in description["files"]] == [{"first": 5, "last": 7, "rows": 3}]
    assert (description["group_count"], description["groups"]) == (1, None)
    assert (description["leftovers"], description["foreign"]) == ([], [])


def test_a_plot(tmp_path: Path, fill_archive: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    fill_archive(tmp_path / "a")
    plot = tmp_path / "p.png"
    assert main(["archive", "describe", str(tmp_path / "a"), "--plot", str(plot)]) == 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().err == f"plotted to {plot}\n"


def test_a_time_outside_of_the_calendar_is_printed_as_a_number() -> None:
    times_ms = (None, 0, -1, 2**62)
    assert [format_utc(time_ms) for time_ms in times_ms] == [
        None,
        "1970-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        str(2**62),
    ]
