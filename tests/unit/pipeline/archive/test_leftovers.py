"""Leftovers of dead writers, foreign files, and the removal of old manifest files."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kbroker.pipeline.archive import staging
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.layout import commit_path, owner_path, state_path
from kbroker.pipeline.archive.leftovers import (
    HISTORY_RETENTION_MS,
    find_foreign_files,
    find_leftovers,
    remove_history,
    remove_leftovers,
)
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import DirectoryEntry, walk
from tests.unit.support.archives import append_file, create_archive, new_data_path, remove_files


@pytest.fixture
def storage(tmp_path: Path, no_sync: None) -> LocalStorage:
    return LocalStorage(str(tmp_path / "archive"))


@pytest.fixture
def archive(storage: LocalStorage) -> Archive:
    return create_archive(storage)


@pytest.fixture(scope="module")
def dead() -> staging.Process:
    """A process of this host that has ended."""
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    return staging.this_process()._replace(pid=int(ended.stdout), start="1")


def stage(archive: Archive, process: staging.Process, kept_files: tuple[str, ...] = ()) -> str:
    """Create the staging directory of a writer, and return its id."""
    writer = staging.new_writer_id()
    archive.storage.create(owner_path(writer), staging.encode_owner(process, kept_files))
    archive.storage.create(f"_staging/{writer}/data-0/topic=t/date=2024-01-01/part-0.parquet", b"")
    return writer


def test_history_before_the_second_last_state_file_is_removed(archive, storage, tmp_path):
    stale = Archive.open(storage)
    replaced = append_file(archive).path
    remove_files(archive, replaced)
    for _ in range(203):
        append_file(archive)
    assert remove_history(archive) == []
    day_ago = time.time() - HISTORY_RETENTION_MS / 1000 - 60
    for path in (tmp_path / "archive" / "_manifest").iterdir():
        os.utime(path, (day_ago, day_ago))
    removed = remove_history(archive)
    assert sorted(removed) == [commit_path(number) for number in range(100)]
    # Without the commit that removed it, the file would look foreign.
    assert not storage.exists(replaced)
    assert Archive.open(storage).state() == stale.state() == archive.state()
    append_file(stale)
    assert Archive.open(storage).state().commit_number == 206
    assert remove_history(archive) == []


def test_a_state_file_beyond_the_last_commit_does_not_replace_history(archive, storage, tmp_path):
    for _ in range(105):
        append_file(archive)
    storage.create(state_path(10**19), storage.read(state_path(100)))
    assert remove_history(archive, retention_ms=-3_600_000) == []
    storage.delete(state_path(10**19))
    assert Archive.open(storage).state() == archive.state()


def test_files_of_a_dead_writer_are_leftovers(archive, storage, dead):
    committed = append_file(archive).path
    writer_id = stage(archive, dead)
    uncommitted = new_data_path(writer_id)
    storage.create(uncommitted, b"")
    assert find_leftovers(archive) == [uncommitted, f"_staging/{writer_id}"]
    assert find_foreign_files(archive) == []
    assert remove_leftovers(Archive.open(storage)) == [uncommitted, f"_staging/{writer_id}"]
    assert find_leftovers(archive) == []
    assert [entry.name for entry in walk(storage, "topic=t")] == [committed]
    assert list(walk(storage, "_staging")) == []


def test_committed_files_of_a_dead_writer_are_not_leftovers(archive, storage, dead):
    writer_id = stage(archive, dead)
    committed = append_file(archive, new_data_path(writer_id)).path
    assert remove_leftovers(archive) == [f"_staging/{writer_id}"]
    assert storage.exists(committed)


def test_files_of_a_living_writer_are_not_leftovers(archive, storage):
    writer = stage(archive, staging.this_process())
    storage.create(new_data_path(writer), b"")
    assert (remove_leftovers(archive), find_foreign_files(archive)) == ([], [])
    assert storage.exists(new_data_path(writer))


@pytest.mark.parametrize(
    ("change", "hours", "is_alive"),
    [
        ({}, 48, True),
        ({"start": "1"}, 0, False),
        ({"boot": "another"}, 0, False),
        ({"host": "another"}, 23, True),
        ({"host": "another"}, 25, False),
    ],
)
def test_a_writer_is_identified_by_host_boot_and_start_time(archive, tmp_path, change, hours, is_alive):
    writer = stage(archive, staging.this_process()._replace(**change))
    mtime = time.time() - hours * 3600
    for path in (tmp_path / "archive" / "_staging").rglob("*"):
        os.utime(path, (mtime, mtime))
    assert find_leftovers(archive) == ([] if is_alive else [f"_staging/{writer}"])


@pytest.mark.parametrize(("hours", "is_alive"), [(23, True), (25, False)])
def test_a_writer_with_a_damaged_owner_file_is_dead_after_a_day(archive, storage, tmp_path, hours, is_alive):
    writer = stage(archive, staging.this_process())
    storage.replace(owner_path(writer), b"{")
    mtime = time.time() - hours * 3600
    for path in (tmp_path / "archive" / "_staging").rglob("*"):
        os.utime(path, (mtime, mtime))
    assert find_leftovers(archive) == ([] if is_alive else [f"_staging/{writer}"])


def test_replaced_files_are_leftovers_unless_a_living_writer_keeps_them(archive, storage, dead):
    first, second = append_file(archive).path, append_file(archive).path
    keeper = stage(archive, staging.this_process(), kept_files=(first,))
    writer_id = stage(archive, dead, kept_files=(second,))
    remove_files(archive, first, second)
    assert find_foreign_files(archive) == []
    assert remove_leftovers(archive) == [second, f"_staging/{writer_id}"]
    storage.delete(f"_staging/{keeper}", recursive=True)
    assert remove_leftovers(archive) == [first]


def test_foreign_files_are_found_and_not_removed(archive, storage):
    committed = append_file(archive).path
    copy = committed.replace("-00000", "-00001")
    directory = "topic=t/date=2024-02-29"
    others = [copy, f"{directory}/part-0.parquet", f"{directory}/x", "topic=u/x.parquet", "x.parquet", "a/b/x.parquet"]
    # pyarrow reads all files as Parquet.
    others += ["notes.txt", "a/b/notes.txt", "lost+found/x"]
    for path in (*others, "_mine/x.parquet", "_mine.txt", f"{directory}/.x.parquet.crc", "a/_b/x"):
        storage.create(path, b"")
    assert find_foreign_files(archive) == sorted(others)
    assert remove_leftovers(archive) == []
    assert all(storage.exists(path) for path in others)


@pytest.mark.timeout(120)
def test_links_that_form_cycles_are_foreign(archive, storage, tmp_path):
    committed, root = append_file(archive).path, tmp_path / "archive"
    (root / "topic=u").symlink_to("topic=t")  # every row appears twice
    for link in ("all", "more", "topic=t/back", "topic=t/again"):
        (root / link).symlink_to(root)
    (root / "topic=t" / "nowhere").symlink_to("nowhere")
    os.mkfifo(root / "fifo")
    linked = committed.replace("topic=t", "topic=u")
    links = ["all", "more", "topic=t/again", "topic=t/back", "topic=u/again", "topic=u/back"]
    assert find_foreign_files(archive) == sorted(["fifo", linked, *links])
    assert find_leftovers(archive) == []


def test_a_committed_file_behind_a_link_is_not_a_leftover(archive, storage, tmp_path, dead):
    writer_id = stage(archive, dead)
    committed = append_file(archive, new_data_path(writer_id)).path
    uncommitted = new_data_path(writer_id, 1)
    storage.create(uncommitted, b"")
    (tmp_path / "archive" / "topic=u").symlink_to("topic=t")
    remove_leftovers(archive)
    assert storage.exists(committed)
    assert not storage.exists(uncommitted)


def test_an_unreadable_lost_and_found_is_ignored(archive, storage, monkeypatch):
    storage.create("lost+found/x", b"")
    storage.create("mine/x", b"")
    list_directory = storage.list_directory

    def deny(path: str) -> list[DirectoryEntry]:
        if path in ("lost+found", "mine"):
            raise PipelineError(f"{path}: permission denied")
        return list_directory(path)

    monkeypatch.setattr(storage, "list_directory", deny)
    assert find_foreign_files(archive) == ["mine"]


def test_old_temporary_files_are_leftovers(archive, storage, tmp_path):
    for name in ("_manifest/.1.json.ab.tmp", "_spark_metadata/.1.ab.tmp", "_manifest/.2.json.ab.tmp"):
        storage.create(name, b"")
    mtime = time.time() - 2 * 3600
    for name in ("_manifest/.1.json.ab.tmp", "_spark_metadata/.1.ab.tmp"):
        os.utime(tmp_path / "archive" / name, (mtime, mtime))
    assert remove_leftovers(archive) == ["_manifest/.1.json.ab.tmp", "_spark_metadata/.1.ab.tmp"]
