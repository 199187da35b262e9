"""`kbroker archive`: what list, describe and compact print, and their errors."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.archive.archive import Archive
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.report import report_topic
from kbroker.archive.topic_state import Gap, TopicState
from kbroker.cli import main
from kbroker.cli.archive.app import format_utc, topic_json
from kbroker.cli.archive.compact import parse_target_size
from kbroker.cli.common.errors import CliError
from tests.unit.support.archive_tables import remove_as_another_program

FillArchive = Callable[[Path], Archive]


def test_the_topics_of_an_archive(
    tmp_path: Path, fill_archive: FillArchive, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_archive(tmp_path)
    assert main(["archive", "list", str(tmp_path)]) == 0
    heading, columns, t, u = (line.split() for line in capsys.readouterr().out.splitlines())
    assert " ".join(heading).startswith(f"{tmp_path} 2 topics, 16 rows, 3 files of ")
    assert columns == ["TOPIC", "PARTITIONS", "ROWS", "OFFSETS", "MISSING", "FILES", "SIZE", "FIRST", "LAST"]
    assert t[:6] == ["t", "1", "10", "10", "0", "1"]
    assert u[:6] == ["u", "2", "6", "8", "5", "2"]
    assert u[-2:] == ["1970-01-01T00:00:01Z", "1970-01-01T00:00:01Z"]


def test_a_directory_of_archives(tmp_path: Path, fill_archive: FillArchive, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        fill_archive(tmp_path / name)
    (tmp_path / "c").mkdir()
    assert main(["archive", "list", str(tmp_path), "--json"]) == 0
    archives = json.loads(capsys.readouterr().out)
    assert [archive["archive"] for archive in archives] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert [(topic["topic"], topic["commit"]) for topic in archives[0]["topics"]] == [("t", 1), ("u", 3)]


def test_a_damaged_table_does_not_hide_the_others(
    tmp_path: Path, fill_archive: FillArchive, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        fill_archive(tmp_path / name)
    for file in (tmp_path / "a/topics/t/metadata").iterdir():
        file.write_text("{}")
    assert main(["archive", "list", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert str(tmp_path / "b") in output.out
    assert [line.split()[0] for line in output.out.splitlines() if not line.startswith("/")] == (
        ["TOPIC", "u", "TOPIC", "t", "u"]
    )
    assert output.err.startswith(f"kbroker: {tmp_path / 'a'}: ")
    assert output.err.count("\n") == 1


def test_a_complete_description(tmp_path: Path, fill_archive: FillArchive, capsys: pytest.CaptureFixture[str]) -> None:
    archive = fill_archive(tmp_path)
    assert main(["archive", "describe", str(tmp_path), "--partitions", "--files", "--groups"]) == 0
    output = capsys.readouterr()
    rows = [line.split() for line in output.out.splitlines()]
    assert ["committed", "only", "no"] in rows
    assert ["u", "0", "5..7", "3", "0", "5", "1"] in [row[:7] for row in rows]
    assert ["u", "1", "5..9", "3", "2"] in [row[:5] for row in rows]
    assert ["u", "0", "0..4", "5", "retention"] in rows
    assert ["u", "retention.ms", "60000"] in rows
    assert ["readers", "u", "1", "6", "2024-03-01T00:00:00Z"] in rows
    files = [row for row in rows if row and row[0].endswith(".parquet")]
    assert [(row[1], *row[3:5]) for row in files] == [("10", "0", "0..9"), ("3", "0", "5..7"), ("3", "1", "5..7")]
    assert output.err == ""
    table = archive.table("t")
    remove_as_another_program(table, table.files()[0])
    assert main(["archive", "describe", str(tmp_path), "--topic", "t"]) == 0
    assert capsys.readouterr().err.startswith("t: another program has changed the table: snapshot ")


def test_one_topic_as_json(tmp_path: Path, fill_archive: FillArchive, capsys: pytest.CaptureFixture[str]) -> None:
    fill_archive(tmp_path)
    assert main(["archive", "describe", str(tmp_path), "--json", "--topic", "u", "--files"]) == 0
    description = json.loads(capsys.readouterr().out)
    (topic,) = description["topics"]
    assert (topic["topic"], topic["partition_count"], topic["offsets_without_record"]) == ("u", 2, 2)
    assert topic["gaps"] == [{"topic": "u", "partition": 0, "start": 0, "end": 5, "reason": "retention"}]
    assert [(file["partition"], file["first"], file["last"]) for file in description["files"]] == [(0, 5, 7), (1, 5, 7)]
    assert (topic["group_count"], description["groups"]) == (1, None)
    assert Path(topic["metadata"].removeprefix("file://")).parent == tmp_path / "topics/u/metadata"


def test_a_plot(tmp_path: Path, fill_archive: FillArchive, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_topic_without_files_as_json() -> None:
    covered = (OffsetRange(100, 200), OffsetRange(300, 310))
    state = TopicState(covered={0: covered}, gaps=(Gap(0, 0, 100, "retention"),))
    document = json.loads(json.dumps(topic_json(report_topic("orders", state, ()))))
    assert (document["configs"], document["committed_ms"]) == (None, None)
    assert document["partitions"][0]["covered"] == [[100, 200], [300, 310]]
    assert (document["offsets_without_record"], document["offsets_missing"]) == (110, 200)
    unexplained = {"topic": "orders", "partition": 0, "start": 200, "end": 300, "reason": "unexplained"}
    assert document["gaps"][1] == unexplained


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("128MiB", 2**27), ("128mb", 2**27), ("1.5 G", 3 * 2**29), ("64k", 2**16)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_target_size(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1x", "1e9", "MiB", "4095", "2TiB"])
def test_invalid_sizes_are_rejected(text: str) -> None:
    with pytest.raises(CliError):
        parse_target_size(text)


ERRORS = [
    (["list", "{}"], "{}: is not an archive and contains none"),
    (["list", "{}/absent"], "{}/absent: is not an archive and contains none"),
    (["describe", "{}/absent"], "{}/absent: no archive found; create one with: kbroker archive run"),
    (["describe", "{}/a", "--topic", "v"], "{}/a: the archive has no topic v; it has t, u"),
    (["describe", "{}/a", "--plot", "p.jpg"], "p.jpg: a plot is a PNG file: its name must end in .png"),
    (["compact", "{}/absent"], "{}/absent: no archive found; create one with: kbroker archive run"),
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
    fill_archive: FillArchive,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "b").mkdir()
    if arguments[0] != "list":
        fill_archive(tmp_path / "a")
    assert main(["archive", *(argument.format(tmp_path) for argument in arguments)]) == status
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == f"kbroker: {message.format(tmp_path)}\n"


def test_archives_need_neither_spark_nor_java(tmp_path: Path, fill_archive: FillArchive) -> None:
    fill_archive(tmp_path)
    program = (
        "import sys; from kbroker.cli import main\n"
        f"for command in ('list', 'describe'): assert main(['archive', command, {str(tmp_path)!r}]) == 0\n"
        "assert not {'pyspark', 'py4j', 'matplotlib', 'kafka'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PATH": "/nowhere"}, timeout=60
    )
    assert done.returncode == 0, done.stderr
