"""The catalogues of archives: where they are, conflicts, and what a crash leaves."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.utils.config import Config

from kbroker.archive.archive import Archive, ConflictError
from kbroker.archive.catalogs import DIRECTORY, SQLITE, create_archive, open_archive
from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage.local import LocalStorage
from kbroker.archive.topic_state import Gap
from tests.unit.support.archive_tables import append_rows


@pytest.mark.parametrize("catalog", [SQLITE, DIRECTORY])
def test_any_name_of_a_directory(tmp_path: Path, catalog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spaces and the characters of URIs are those of the name."""
    monkeypatch.chdir(tmp_path)
    name = "a b#c?d%20é:e"
    table = create_archive(name, {"period": "hour"}, catalog).create_table("t.u-v_w")
    append_rows(table, count=3)
    assert os.listdir(tmp_path) == [name]
    archive = open_archive(f"file://{tmp_path}/{name}")
    assert archive.location == str(tmp_path / name)
    assert (archive.settings.period, archive.topics()) == ("hour", ["t.u-v_w"])
    assert archive.table("t.u-v_w").iceberg.scan().to_arrow()["offset"].to_pylist() == [0, 1, 2]
    # What exists counts, not what a later run asks for.
    assert create_archive(name, {}, SQLITE).topics() == ["t.u-v_w"]


def directory_archive(path: Path) -> Archive:
    return create_archive(str(path), {}, DIRECTORY)


def test_the_second_of_two_writers_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the first one commits between the check and the write of the second."""
    first = directory_archive(tmp_path).create_table("t")
    second = open_archive(str(tmp_path)).table("t")
    assert directory_archive(tmp_path).create_table("t").location == first.location
    append_rows(first, count=10)
    with pytest.raises(ConflictError, match="another process has changed the table"):
        append_rows(second, count=10)
    second.refresh()
    assert [file.rows for file in second.files()] == [10]
    create = LocalStorage.create

    def commit_before(storage: LocalStorage, path: str, data: bytes) -> bool:
        monkeypatch.setattr(LocalStorage, "create", create)
        append_rows(first, first=10, count=10)
        return storage.create(path, data)

    monkeypatch.setattr(LocalStorage, "create", commit_before)
    with pytest.raises(ConflictError, match="another process has committed version 3"):
        append_rows(second, first=10, count=5)
    assert [file.rows for file in open_archive(str(tmp_path)).table("t").files()] == [10, 10]


def test_a_writer_that_slept_while_old_metadata_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number is free again, but its commit would not be seen."""
    first = directory_archive(tmp_path).create_table("t")
    second = open_archive(str(tmp_path)).table("t")
    create = LocalStorage.create

    def sleep(storage: LocalStorage, path: str, data: bytes) -> bool:
        monkeypatch.setattr(LocalStorage, "create", create)
        for number in range(22):
            first.commit("observe", replace(first.state, groups_ms=number + 1))
        assert not storage.exists(path)
        return storage.create(path, data)

    monkeypatch.setattr(LocalStorage, "create", sleep)
    with pytest.raises(ConflictError, match="another process has committed version 2"):
        second.commit("observe", replace(second.state, gaps=(Gap(0, 0, 5, "retention"),)))
    assert second.refresh() == first.state
    names = os.listdir(tmp_path / "topics" / "t" / "metadata")
    assert "v2.metadata.json" not in names
    assert len([name for name in names if name.startswith("v") and name.endswith("json")]) <= 21


@pytest.mark.parametrize("hint", [None, b"", b"2", b"99", b"x"])
def test_a_wrong_hint_does_no_harm(tmp_path: Path, hint: bytes | None) -> None:
    """A crash between a commit and its hint leaves the one before; Hadoop's deletes it before it writes it."""
    table = directory_archive(tmp_path).create_table("t")
    for number in range(3):
        append_rows(table, first=number, count=1)
    path = tmp_path / "topics" / "t" / "metadata" / "version-hint.text"
    assert path.read_bytes() == b"4"
    path.unlink() if hint is None else path.write_bytes(hint)
    other = open_archive(str(tmp_path)).table("t")
    assert other.state == table.state
    append_rows(other, first=3, count=1)
    assert path.read_bytes() == b"5"


def test_damage(tmp_path: Path) -> None:
    """One sentence with the name of the file."""
    archive = directory_archive(tmp_path)
    archive.create_table("t")
    (tmp_path / "topics" / "killed" / "metadata").mkdir(parents=True)
    assert archive.topics() == ["t"]
    with pytest.raises(ArchiveError, match="has no topic killed"):
        archive.table("killed")
    path = tmp_path / "topics" / "t" / "metadata" / "v1.metadata.json"
    for data in (b"", b"{}", path.read_bytes()[:-1]):
        path.write_bytes(data)
        with pytest.raises(ArchiveError, match=r"v1.metadata.json: is damaged, or no metadata of a table"):
            archive.table("t")
    (tmp_path / "topics.json").write_bytes(b"{")
    with pytest.raises(ArchiveError, match=r"topics.json: is damaged"):
        open_archive(str(tmp_path))


@pytest.mark.parametrize("catalog", [SQLITE, DIRECTORY])
def test_files_are_durable_before_the_commit(tmp_path: Path, catalog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file that the catalogue names after a commit was synced before, and so was its name."""
    table = create_archive(str(tmp_path), {}, catalog).create_table("t")
    synced: set[int] = set()
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", record)
    append_rows(table, count=1)
    paths = [path for path in tmp_path.glob("topics/t/*/**/*") if path.suffix in (".parquet", ".avro")]
    paths.append(Path(table.iceberg.metadata_location.removeprefix("file://")))
    assert len(paths) == 4  # data, manifest, manifest list, metadata
    for path in paths:
        for each in (path, path.parent):
            assert each.stat().st_ino in synced, each
    # New directories, too: these are of a partition and of a day.
    assert (tmp_path / "topics" / "t" / "data").stat().st_ino in synced


def test_other_locations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`catalog:` names a catalogue of pyiceberg's configuration and a namespace in it."""
    monkeypatch.setenv("PYICEBERG_CATALOG__OFFICE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__OFFICE__URI", f"sqlite:///{tmp_path}/office.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__OFFICE__WAREHOUSE", f"file://{tmp_path}/warehouse")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which it reads when it is imported
    with pytest.raises(ArchiveError, match="catalog:office/kafka: no archive found"):
        open_archive("catalog:office/kafka")
    append_rows(create_archive("catalog:office/kafka", {}).create_table("t"), count=7)
    table = open_archive("catalog:office/kafka").table("t")
    assert table.location == f"file://{tmp_path}/warehouse/kafka/t"
    assert [file.rows for file in table.files()] == [7]
    # Another program needs nothing of kbroker.
    other = SqlCatalog("office", uri=f"sqlite:///{tmp_path}/office.db")
    assert other.load_table("kafka.t").scan().to_arrow().num_rows == 7
    with pytest.raises(ArchiveError, match="the form is catalog:NAME/NAMESPACE"):
        open_archive("catalog:office")
    with pytest.raises(ArchiveError, match="catalog:absent: "):
        open_archive("catalog:absent/kafka")
    (tmp_path / "file").touch()
    with pytest.raises(ArchiveError, match="file"):
        create_archive(str(tmp_path / "file" / "x"), {})
