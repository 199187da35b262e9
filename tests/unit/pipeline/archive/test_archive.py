"""An archive's manifest with several writers, and manifests that are rejected."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.layout import OffsetRange, commit_path, state_path
from kbroker.pipeline.archive.manifest import CoveredRange, ManifestCommit, encode_commit
from kbroker.pipeline.archive.manifest_files import SparkMetadataLog
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from tests.unit.support.archives import SETTINGS, append_file, create_archive, make_file, new_data_path


@pytest.fixture
def storage(tmp_path: Path, no_sync: None) -> LocalStorage:
    return LocalStorage(str(tmp_path / "archive"))


@pytest.fixture
def archive(storage: LocalStorage) -> Archive:
    return create_archive(storage)


def test_an_archive_is_created_once_and_opened_again(storage):
    first = Archive.open_or_create(storage, {"committed_only": True, "id": "ignored"})
    reopened = Archive.open_or_create(storage, SETTINGS)
    settings = Archive.open(storage).state().settings
    assert first.state() == reopened.state()
    assert (settings["committed_only"], settings["format"], settings["format_version"]) == (True, "kbroker-archive", 1)
    assert len(settings["id"]) == 36
    assert reopened.state().commit_number == 0


def test_a_directory_without_an_archive_is_rejected(storage, tmp_path):
    with pytest.raises(PipelineError, match=r"archive: no archive found; create one with"):
        Archive.open(storage)
    storage.create("photos/cat.jpg", b"")
    with pytest.raises(PipelineError, match="is not an archive: it has no _manifest directory with commits"):
        Archive.open(storage)
    with pytest.raises(PipelineError, match=r"is not an archive and not empty \(it contains photos\)"):
        create_archive(storage)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PipelineError, match="not a directory"):
        create_archive(LocalStorage(str(tmp_path / "file")))
    assert sorted(os.listdir(tmp_path / "archive")) == ["photos"]


def test_an_archive_is_created_in_a_new_file_system_and_after_an_interrupted_creation(storage):
    storage.create("lost+found/x", b"")
    storage.create("_manifest/.00000000000000000000.json.ab.tmp", b"")
    assert create_archive(storage).state().commit_number == 0


def test_a_manifest_of_another_format_is_rejected(storage):
    first = ManifestCommit("create", 0, settings={"format": "delta", "format_version": 1})
    storage.create(commit_path(0), encode_commit(0, first, ""))
    with pytest.raises(PipelineError, match="the manifest does not belong to a kbroker archive"):
        Archive.open(storage)


def test_a_newer_format_version_is_rejected(storage):
    first = ManifestCommit("create", 0, settings={"format": "kbroker-archive", "format_version": 2})
    storage.create(commit_path(0), encode_commit(0, first, ""))
    with pytest.raises(PipelineError, match="format version 2 was written by a newer version of kbroker"):
        Archive.open(storage)


def test_other_archive_objects_see_a_commit(archive, storage):
    other = Archive.open(storage)
    file = append_file(archive, rows=5)
    assert dict(other.state().files) == {file.path: file}
    assert other.state().covered == {TopicPartition("t", 0): (OffsetRange(0, 5),)}
    assert Archive.open(storage).state() == archive.state() == other.state()


def test_a_writer_that_loses_a_race_rebuilds_its_commit(archive, storage):
    other = Archive.open(storage)
    numbers: list[int] = []

    def build(state):
        if not numbers:
            append_file(other)
        numbers.append(state.commit_number)
        return ManifestCommit("observe", 5)

    assert archive.commit(build).commit_number == 2
    assert numbers == [0, 1]
    assert archive.commit(lambda state: None).commit_number == 2
    with pytest.raises(PipelineError, match="other writers committed first 3 times in a row"):
        archive.commit(lambda state: [append_file(other), ManifestCommit("observe", 5)][1], attempts=3)


def test_concurrent_writers_lose_and_duplicate_nothing(storage):
    create_archive(storage)
    barrier = threading.Barrier(4)
    errors: list[BaseException] = []

    def write() -> None:
        archive = Archive.open(storage)
        barrier.wait()
        try:
            for _ in range(30):
                append_file(archive)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    state = Archive.open(storage).state()
    assert (state.commit_number, len(state.files)) == (120, 120)
    assert state.covered == {TopicPartition("t", 0): (OffsetRange(0, 120),)}
    assert sorted(stats.first for file in state.files.values() for stats in file.partitions) == list(range(120))
    create_archive(storage)
    assert sorted(SparkMetadataLog(storage).read()) == sorted(storage.uri(path) for path in state.files)


def test_a_commit_that_contradicts_the_state_is_rejected(archive, storage):
    append_file(archive, rows=5)
    before = archive.state()
    for bad, message in (
        (
            ManifestCommit("append", 1, covered=(CoveredRange("t", 0, 4, 6),)),
            "offsets from 4 are already archived, up to 5",
        ),
        (ManifestCommit("compact", 1, remove=(new_data_path(),)), "which is not in the archive"),
        (ManifestCommit("append", 1, add=(next(iter(before.files.values())),)), "already in the archive"),
        (ManifestCommit("append", 1, add=(make_file(new_data_path())._replace(path="x"),)), "damaged"),
    ):
        with pytest.raises(PipelineError, match=message):
            archive.commit(lambda state, bad=bad: bad)
    assert archive.state() == before == Archive.open(storage).state()


def test_state_files_are_written_every_100_commits_and_read(archive, storage):
    for _ in range(205):
        append_file(archive)
    state_files = [entry.name for entry in storage.list_directory("_manifest") if ".state." in entry.name]
    assert state_files == ["00000000000000000100.state.json", "00000000000000000200.state.json"]
    assert Archive.open(storage).state() == archive.state()
    storage.delete(state_path(100))
    storage.delete(state_path(200))
    without_state_files = Archive.open(storage)
    assert without_state_files.state() == archive.state()
    append_file(without_state_files)
    assert storage.exists(state_path(206))


def test_a_missing_commit_is_reported(archive, storage):
    for _ in range(3):
        append_file(archive)
    storage.delete(commit_path(2))
    with pytest.raises(PipelineError, match=r"commit 2 is missing from the manifest \(_manifest/0+2.json\)"):
        Archive.open(storage)


def test_a_missing_first_commit_is_reported(archive, storage):
    append_file(archive)
    storage.delete(commit_path(0))
    with pytest.raises(PipelineError, match=r"commit 0 is missing from the manifest \(_manifest/0+.json\)"):
        Archive.open(storage)


def test_files_that_cannot_be_commits_are_reported(archive, storage, tmp_path):
    for _ in range(2):
        append_file(archive)
    far = 10**19
    storage.create(commit_path(far), storage.read(commit_path(2)))
    with pytest.raises(PipelineError, match=r"commit 3 is missing"):
        Archive.open(storage)
    storage.delete(commit_path(far))
    storage.delete(commit_path(2))
    os.mkfifo(tmp_path / "archive" / commit_path(2))
    with pytest.raises(PipelineError, match=r"0+2.json: is a FIFO"):
        Archive.open(storage)


def test_a_missing_last_commit_is_reported_by_an_open_archive(archive, storage):
    append_file(archive)
    storage.delete(commit_path(1))
    with pytest.raises(PipelineError, match="commit 1 is missing"):
        archive.state()


def test_a_commit_that_breaks_the_hash_chain_is_reported(archive, storage):
    append_file(archive)
    other = encode_commit(1, ManifestCommit("observe", 5), "")
    append_file(archive)
    storage.replace(commit_path(1), other)
    with pytest.raises(PipelineError, match=r"0+1.json: does not continue the commit before it"):
        Archive.open(storage)


def test_nothing_is_committed_after_a_damaged_commit(archive, storage):
    other = Archive.open(storage)
    append_file(archive)
    data = storage.read(commit_path(1))
    storage.replace(commit_path(1), data[:-40])
    with pytest.raises(PipelineError, match=r"0+1.json: damaged"):
        append_file(other)
    assert not storage.exists(commit_path(2))


def test_a_full_disk_does_not_change_the_archive(archive, storage, monkeypatch):
    append_file(archive)
    before = archive.state()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PipelineError, match="no space left on device; archived records stay readable"):
        archive.commit(lambda state: ManifestCommit("observe", 5))
    monkeypatch.undo()
    assert archive.state() == before == Archive.open(storage).state()
    assert append_file(archive).path in Archive.open(storage).state().files


def test_an_archive_of_ten_thousand_files_opens_quickly(archive, storage):
    for batch in range(100):
        paths = [new_data_path(f"{batch:012x}", number) for number in range(100)]
        files = tuple(make_file(path, batch * 100 + n, partitions=3) for n, path in enumerate(paths))
        archive.commit(lambda state, files=files: ManifestCommit("append", 1, add=files))
    start_s = time.process_time()
    state = Archive.open(storage).state()
    cpu_s = time.process_time() - start_s
    assert (state.commit_number, len(state.files)) == (100, 10_000)
    # 0.2 s of processor time, which other processes do not change; the bound allows for a slower machine.
    assert cpu_s < 5, f"{cpu_s:.2f} s"


def test_settings_are_stored_in_the_first_commit(archive, storage):
    document = json.loads(storage.read(commit_path(0)))
    assert document["settings"] == dict(archive.state().settings)
