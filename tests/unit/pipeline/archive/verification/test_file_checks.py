"""Files that are not committed, and the check of Spark's metadata."""

import os
from pathlib import Path

import pytest

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest.model import ArchiveState
from kbroker.pipeline.archive.verification.file_checks import check_spark_metadata, split_uncommitted
from kbroker.pipeline.archive.verification.findings import format_finding
from kbroker.pipeline.storage.local import LocalStorage
from tests.unit.support.archives import append_file, create_archive, make_file, new_data_path


def test_the_metadata_of_a_moved_archive_is_reported(tmp_path: Path) -> None:
    archive = create_archive(LocalStorage(str(tmp_path / "old")))
    append_file(archive)
    assert check_spark_metadata(archive.storage, archive.state()) == []
    (tmp_path / "old").rename(tmp_path / "new")
    moved = Archive.open(LocalStorage(str(tmp_path / "new")))
    (finding,) = check_spark_metadata(moved.storage, moved.state())
    assert "because the archive was moved or copied; `kbroker archive compact` corrects it" in format_finding(finding)
    moved.update_spark_metadata()
    assert check_spark_metadata(moved.storage, moved.state()) == []


@pytest.mark.timeout(120)
def test_metadata_that_spark_cannot_read_is_reported(tmp_path: Path) -> None:
    archive = create_archive(LocalStorage(str(tmp_path)))
    append_file(archive)
    latest = max((tmp_path / "_spark_metadata").iterdir(), key=lambda path: int(path.name.partition(".")[0]))

    def check() -> str:
        (finding,) = check_spark_metadata(archive.storage, archive.state())
        return finding.text

    latest.write_bytes(b"v1\n")
    os.truncate(latest, 1 << 40)
    assert check() == f"_spark_metadata/{latest.name}: has a line of more than 65536 bytes"
    latest.unlink()
    os.mkfifo(latest)
    assert check() == f"{latest}: is a FIFO"


def test_uncommitted_files_are_foreign_or_leftovers() -> None:
    committed, committed_copy = new_data_path("a" * 12, 0), new_data_path("a" * 12, 7)
    other = "topic=t/date=2024-02-29/part-0.parquet"
    unknown_writer, writing, replaced = (new_data_path(writer * 12) for writer in "cbd")
    listed = [committed, committed_copy, other, unknown_writer, writing, replaced]
    state = ArchiveState(files={committed: make_file(committed)})
    foreign, notes = split_uncommitted(listed, {"b" * 12}, state, {replaced})
    assert foreign == [committed_copy, other, unknown_writer]
    assert [(note.file, note.is_difference) for note in notes] == [(replaced, False)]
