"""`kbroker archive compact`, `expire`, `erase` and `convert`: what they print and return."""

import json
from pathlib import Path

import pytest

from kbroker.archive.archive import Archive
from kbroker.archive.catalogs import create_archive, open_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.decoding.dead_letters import create_dead_letters, find_dead_letters, make_dead_rows
from kbroker.cli import main
from tests.unit.support.archive_tables import DAY_MS, append_rows, make_rows
from tests.unit.support.old_archives import write_old_archive


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """Four files of one topic, of two days."""
    archive = create_archive(str(tmp_path / "archive"), {})
    table = archive.create_table("t")
    for number in range(4):
        append_rows(table, 0, 10 * number, 10, timestamp_ms=DAY_MS * (number // 2))
    return archive


def test_compact(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["archive", "compact", archive.location]
    assert main([*command, "--dry-run", "--date", "1970-01-02"]) == 0
    heading, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert (heading, row[:3]) == (["TOPIC", "FILES", "BECOME", "SIZE"], ["t", "2", "1"])
    assert main([*command, "--dry-run", "--json", "--topic", "t"]) == 0
    merged = json.loads(capsys.readouterr().out)["merged"]
    assert [len(each["files"]) for each in merged] == [2, 2]
    assert main([*command, "--keep-replaced", "0s"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("merged 4 files of ")
    assert "with 40 rows\ndeleted " in out
    assert main(command) == 0
    assert capsys.readouterr().out == "there is nothing to merge\n"


def test_damage_fails_the_command(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    path = archive.table("t").files()[0].path
    Path(path.removeprefix("file://")).unlink()
    assert main(["archive", "compact", archive.location]) == 1
    assert f"{path}: it is missing; it was not merged" in capsys.readouterr().err


def test_expire(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["archive", "expire", archive.location, "--before", "1970-01-02"]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("would expire 20 records of 1 topic, in 2 files of ")
    assert main([*command, "--keep-replaced", "0s"]) == 0
    assert capsys.readouterr().out.startswith("expired 20 records of 1 topic, in 2 files of ")
    assert main(["archive", "expire", archive.location, "--older-than", "1h", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == 20
    assert open_archive(archive.location).table("t").files() == []
    assert main(["archive", "expire", archive.location]) == 2


def test_erase(archive: Archive, capsys: pytest.CaptureFixture[str]) -> None:
    """Also from dead letters."""
    table = create_dead_letters(archive, "t")
    rows = make_dead_rows(make_rows(0, 5, 1), ["bad"], 0)
    table.commit("append", table.state, add=write_rows(table.write_target(), [rows]))
    command = ["archive", "erase", archive.location]
    assert main([*command, "--key", "key-5", "--key-hex", b"key-17".hex()]) == 0
    assert capsys.readouterr().out == "erased 3 records from 3 of 7 files\n"
    assert 5 not in open_archive(archive.location).table("t").iceberg.scan().to_arrow()["offset"].to_pylist()
    dead = find_dead_letters(archive, "t")
    assert dead is not None
    assert dead.files() == []
    assert main([*command, "--key-hex", "xy"]) == 2
    assert main(command) == 2


def test_convert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_old_archive(tmp_path)
    assert main(["archive", "list", str(tmp_path)]) == 1
    assert "kbroker archive convert" in capsys.readouterr().err
    assert main(["archive", "convert", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "converted 2 topics with 43 records: 2 files became 3\n"
    assert main(["archive", "convert", str(tmp_path)]) == 1
    assert "is not an archive of the old format" in capsys.readouterr().err
