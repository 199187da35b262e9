"""Archives that were moved or copied."""

import shutil
from pathlib import Path

import pytest

from kbroker.archive.archive import Archive
from kbroker.archive.catalogs import DIRECTORY, SQLITE, create_archive, open_archive
from kbroker.archive.catalogs.relocation import relocate
from kbroker.archive.data_files import write_rows
from kbroker.archive.errors import ArchiveError
from tests.unit.support.archive_tables import append_rows, make_rows


def fill(path: Path, catalog: str) -> Archive:
    archive = create_archive(str(path), {}, catalog)
    archive.create_table("empty")
    table = archive.create_table("a.b")
    files = [append_rows(table, partition=number % 2, first=10 * number, count=10) for number in range(4)]
    merged = write_rows(table.write_target(), [make_rows(0, 0, 10)])
    table.commit("compact", table.state, add=merged, remove=files[:1])
    return archive


def relocated(path: Path) -> list[str]:
    topics: list[str] = []
    relocate(open_archive(str(path)), topics.append)
    return topics


@pytest.mark.parametrize("catalog", [SQLITE, DIRECTORY])
def test_an_archive_that_was_moved(tmp_path: Path, catalog: str) -> None:
    """It is refused until its paths are rewritten; then it has the same state, and takes commits."""
    old, new = tmp_path / "old", tmp_path / "new place"
    before = fill(old, catalog).table("a.b")
    rows = before.iceberg.scan().to_arrow().sort_by("offset")
    files = sorted((file.first, file.rows, file.sha256) for file in before.files())
    old.rename(new)
    with pytest.raises(ArchiveError, match=f"kbroker archive relocate {new}$"):
        open_archive(str(new)).table("a.b")
    assert relocated(new) == ["a.b", "empty"]
    assert relocated(new) == []
    table = open_archive(str(new)).table("a.b")
    assert table.state == before.state
    assert table.foreign_change() is None
    assert {file.path.startswith(f"file://{new}/topics/a.b/data/") for file in table.files()} == {True}
    assert sorted((file.first, file.rows, file.sha256) for file in table.files()) == files
    assert table.iceberg.scan().to_arrow().sort_by("offset") == rows
    append_rows(table, first=40, count=5)
    append_rows(open_archive(str(new)).table("empty"), count=5)
    assert len(open_archive(str(new)).table("a.b").files()) == 5
    assert not old.exists()


@pytest.mark.parametrize("catalog", [SQLITE, DIRECTORY])
def test_a_copy_is_independent(tmp_path: Path, catalog: str) -> None:
    """Before, it would have read and written the original."""
    original = fill(tmp_path / "a", catalog)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    with pytest.raises(ArchiveError, match=r"b was moved or copied from file://.*/a/topics/a.b; run: kbroker archive "):
        open_archive(str(tmp_path / "b")).table("a.b")
    assert relocated(tmp_path / "b") == ["a.b", "empty"]
    shutil.rmtree(tmp_path / "b" / "topics" / "empty")
    append_rows(open_archive(str(tmp_path / "b")).table("a.b"), first=40, count=5)
    assert len(original.table("a.b").files()) == 4
    assert open_archive(str(tmp_path / "a")).table("empty").files() == []
