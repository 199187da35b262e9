"""`kbroker archive list`, `describe`, and what `compact` does without Spark."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli import main
from kbroker.cli.archive.compact import size_of
from kbroker.cli.archive.text import utc
from kbroker.cli.common.errors import CliError
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest.model import CoveredRange, Gap, ManifestCommit, TopicInfo
from kbroker.pipeline.archive.staging import owner
from kbroker.pipeline.storage.local import LocalStorage
from tests.unit.support.archives import append, created, file_of, new_path


def filled(directory: Path) -> Archive:
    """Two topics; of t partition 0 is archived, of u partitions 0 and 1, with a gap, configs and a group."""
    archive = created(LocalStorage(str(directory)))
    append(archive, rows=10)
    path = new_path(topic="u", date="2024-03-01")
    archive.storage.create(path, path.encode())
    archive.commit(
        lambda _: ManifestCommit(
            "append", 1_709_251_200_000,
            add=(file_of(path, 5, 3, 2),),
            covered=(CoveredRange("u", 0, 5, 8), CoveredRange("u", 1, 5, 10)),
            gaps=(Gap("u", 0, 0, 5, "retention"),),
            topics={"u": TopicInfo("id-of-u", 2, {"retention.ms": "60000"})},
            groups={"readers": {"u": {0: 7, 1: 6}}},
        )
    )  # fmt: skip
    return archive


def left_behind(directory: Path) -> list[str]:
    """A file and a staging directory of a writer that has died."""
    storage, writer = LocalStorage(str(directory)), owner.new_writer()
    storage.create(owner.owner_path(writer), owner.encode(owner.this_process()._replace(start="0")))
    storage.create(new_path(writer), b"")
    return [new_path(writer), f"{owner.STAGING}/{writer}"]


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_the_topics_of_an_archive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path)
    assert main(["archive", "list", str(tmp_path)]) == 0
    head, columns, t, u = lines(capsys.readouterr().out)
    assert " ".join(head).startswith(f"{tmp_path} 2 topics, 16 rows, 2 files of ")
    assert columns == ["TOPIC", "PARTITIONS", "ROWS", "OFFSETS", "LOST", "FILES", "SIZE", "FIRST", "LAST"]
    assert t[:6] == ["t", "1", "10", "10", "0", "1"]
    assert u[:6] == ["u", "2", "6", "8", "5", "1"]
    assert u[-2:] == ["1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"]


def test_a_directory_of_archives(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        filled(tmp_path / name)
    (tmp_path / "c").mkdir()
    assert main(["archive", "list", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [one["archive"] for one in told] == [str(tmp_path / "a"), str(tmp_path / "b")]
    assert [topic["topic"] for topic in told[0]["topics"]] == ["t", "u"]
    assert told[0]["commit"] == 2


def test_a_damaged_archive_does_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        filled(tmp_path / name)
    next((tmp_path / "a" / "_manifest").glob("*1.json")).write_text("{}")
    assert main(["archive", "list", str(tmp_path)]) == 1
    shown = capsys.readouterr()
    assert str(tmp_path / "b") in shown.out
    assert shown.err.startswith(f"kbroker: file://{tmp_path / 'a'}/_manifest/")
    assert shown.err.count("\n") == 1


def test_a_description(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path)
    left = left_behind(tmp_path)
    assert main(["archive", "describe", str(tmp_path), "--partitions", "--files", "--groups"]) == 0
    shown = capsys.readouterr()
    told = lines(shown.out)
    assert ["committed", "only", "no"] in told
    assert ["last", "commit", "2024-03-01T00:00:00Z"] in told
    assert next(row[:8] for row in told if row[:3] == ["u", "0", "5..7"]) == [
        "u",
        "0",
        "5..7",
        "3",
        "0",
        "5",
        "1",
        "30bytes",
    ]
    assert next(row[:5] for row in told if row[:3] == ["u", "1", "5..9"])[3:] == ["3", "2"]
    assert ["u", "0", "0..4", "5", "retention"] in told
    assert ["u", "retention.ms", "60000"] in told
    assert ["readers", "u", "1", "6"] in told
    assert sum(row[0].endswith(".parquet") for row in told if row) == 2
    assert shown.err == f"beside the archive, left by dead writers: {', '.join(left)}\n"


def test_a_description_of_one_topic_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path)
    assert main(["archive", "describe", str(tmp_path), "--json", "--topic", "u", "--files"]) == 0
    told = json.loads(capsys.readouterr().out)
    (topic,) = told["topics"]
    assert (topic["topic"], topic["partitions"], topic["offsets_without_record"]) == ("u", 2, 2)
    assert topic["gaps"] == [{"topic": "u", "partition": 0, "start": 0, "end": 5, "reason": "retention"}]
    assert [file["partitions"]["1"] for file in told["files"]] == [{"first": 5, "last": 7, "rows": 3}]
    assert (told["group_count"], told["groups"], told["leftovers"], told["foreign"]) == (1, None, [], [])


def test_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path / "a")
    picture = tmp_path / "p.png"
    assert main(["archive", "describe", str(tmp_path / "a"), "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().err == f"drawn: {picture}\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["list", "{}"], "{}: no archive there, and none in it"),
        (["list", "{}/absent"], "{}/absent: no archive there, and none in it"),
        (["describe", "{}/absent"], "{}/absent: no archive there; make one with: kbroker archive run"),
        (["describe", "{}/a", "--topic", "v"], "topic v is not in the archive; there are t, u"),
        (["describe", "{}/a", "--plot", "p.jpg"], "p.jpg: a plot is a PNG file, so its name has to end in .png"),
        (["compact", "{}/absent"], "{}/absent: no archive there; make one with: kbroker archive run"),
        (["compact", "{}/a", "--topic", "v"], "the archive has no rows of topic v"),
        (["compact", "{}/a", "--date", "1999-01-31"], "the archive has no rows of date 1999-01-31"),
        (["compact", "{}/a", "--target-size", "1"], "the target size must be from 4.0 KiB to 1.0 TiB, not 1"),
        (["compact", "{}/a", "--target-size", "big"], "expected a size as 128MiB or 1GiB, not 'big'"),
        (["compact", "{}/a", "--keep-replaced", "x"], "expected a duration such as 90s, 1h30m or P1DT2H, not 'x'"),
    ],
)
def test_what_cannot_be_is_one_sentence(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b").mkdir()
    if arguments[0] != "list":
        filled(tmp_path / "a")
    assert main(["archive", *(argument.format(tmp_path) for argument in arguments)]) in (1, 2)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"kbroker: {told.format(tmp_path)}\n"


def test_neither_spark_nor_java_is_needed(tmp_path: Path) -> None:
    filled(tmp_path)
    left = left_behind(tmp_path)
    program = (
        "import sys; from kbroker.cli import main\n"
        f"for command in ('list', 'describe', 'compact'): assert main(['archive', command, {str(tmp_path)!r}]) == 0\n"
        "assert not {'pyspark', 'py4j', 'pyarrow', 'matplotlib', 'kafka'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PATH": "/nowhere"}, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("there is nothing to merge\nremoved 2 left by dead writers\n")
    assert not any((tmp_path / path).exists() for path in left)


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("128MiB", 2**27), ("128mb", 2**27), ("1.5 G", 3 * 2**29), ("64k", 2**16)]
)
def test_a_size(text: str, size: int) -> None:
    assert size_of(text) == size


@pytest.mark.parametrize("text", ["", "-1", "1x", "1e9", "MiB", "4095", "2TiB"])
def test_no_size(text: str) -> None:
    with pytest.raises(CliError):
        size_of(text)


def test_a_time_that_no_calendar_holds_stays_a_number() -> None:
    assert [utc(t) for t in (None, 0, -1, 2**62)] == [None, "1970-01-01T00:00:00Z", "1969-12-31T23:59:59Z", str(2**62)]
