"""An archive's manifest under several writers, what is refused, and what is left over."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.archive import FORGET_AFTER_MS, Archive
from kbroker.pipeline.archive.manifest import file_format as manifest
from kbroker.pipeline.archive.manifest.model import CoveredRange, ManifestCommit, OffsetRange
from kbroker.pipeline.archive.staging import owner
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import DirectoryEntry
from kbroker.pipeline.storage.walk import walk
from tests.unit.support.archives import SETTINGS, append, created, file_of, new_path, remove


@pytest.fixture
def storage(tmp_path: Path, no_sync: None) -> LocalStorage:
    return LocalStorage(str(tmp_path / "archive"))


@pytest.fixture
def archive(storage: LocalStorage) -> Archive:
    return created(storage)


@pytest.fixture(scope="module")
def dead() -> owner.Process:
    """A process of this machine that has ended."""
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    return owner.this_process()._replace(pid=int(ended.stdout), start="1")


def stage(archive: Archive, process: owner.Process, keeps: tuple[str, ...] = ()) -> str:
    """A writer's staging directory; returns the writer."""
    writer = owner.new_writer()
    archive.storage.create(owner.owner_path(writer), owner.encode(process, keeps))
    archive.storage.create(f"_staging/{writer}/data-0/topic=t/date=2024-01-01/part-0.parquet", b"")
    return writer


def paths_of(archive: Archive) -> list[str]:
    return sorted(archive.state().files)


def test_an_archive_is_made_once_and_opened_again(storage):
    first = Archive.open_or_create(storage, {"committed_only": True, "id": "mine is not taken"})
    again = Archive.open_or_create(storage, SETTINGS)
    settings = Archive.open(storage).state().settings
    assert first.state() == again.state()
    assert (settings["committed_only"], settings["format"], settings["format_version"]) == (True, "kbroker-archive", 1)
    assert len(settings["id"]) == 36
    assert again.state().number == 0


def test_what_is_no_archive_is_refused(storage, tmp_path):
    with pytest.raises(PipelineError, match=r"archive: no archive there; make one with"):
        Archive.open(storage)
    storage.create("photos/cat.jpg", b"")
    with pytest.raises(PipelineError, match="is no archive: it has no _manifest directory with commits"):
        Archive.open(storage)
    with pytest.raises(PipelineError, match=r"is no archive and not empty \(it has photos\)"):
        created(storage)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(PipelineError, match="not a directory"):
        created(LocalStorage(str(tmp_path / "file")))
    assert sorted(os.listdir(tmp_path / "archive")) == ["photos"]


def test_an_archive_is_made_in_a_new_file_system_and_after_a_creation_that_failed(storage):
    storage.create("lost+found/x", b"")
    storage.create("_manifest/.00000000000000000000.json.ab.tmp", b"")
    assert created(storage).state().number == 0


def test_a_manifest_of_something_else_is_refused(storage):
    first = ManifestCommit("create", 0, settings={"format": "delta", "format_version": 1})
    storage.create(manifest.commit_path(0), manifest.encode_commit(0, first, ""))
    with pytest.raises(PipelineError, match="the manifest is not that of a kbroker archive"):
        Archive.open(storage)


def test_a_newer_format_is_refused(storage):
    first = ManifestCommit("create", 0, settings={"format": "kbroker-archive", "format_version": 2})
    storage.create(manifest.commit_path(0), manifest.encode_commit(0, first, ""))
    with pytest.raises(PipelineError, match="format version 2, written by a newer kbroker than this one"):
        Archive.open(storage)


def test_a_commit_is_seen_by_others_when_they_look_again(archive, storage):
    other = Archive.open(storage)
    file = append(archive, rows=5)
    assert dict(other.state().files) == {file.path: file}
    assert other.state().covered == {TopicPartition("t", 0): (OffsetRange(0, 5),)}
    assert Archive.open(storage).state() == archive.state() == other.state()


def test_who_is_second_builds_its_commit_of_the_newer_state(archive, storage):
    other = Archive.open(storage)
    seen: list[int] = []

    def build(state):
        if not seen:
            append(other)
        seen.append(state.number)
        return ManifestCommit("observe", 5)

    assert archive.commit(build).number == 2
    assert seen == [0, 1]
    assert archive.commit(lambda state: None).number == 2
    with pytest.raises(PipelineError, match="other writers were first 3 times in turn"):
        archive.commit(lambda state: [append(other), ManifestCommit("observe", 5)][1], attempts=3)


def test_writers_that_race_lose_and_double_nothing(storage):
    created(storage)
    together = threading.Barrier(4)
    failed: list[BaseException] = []

    def write() -> None:
        archive = Archive.open(storage)
        together.wait()
        try:
            for _ in range(30):
                append(archive)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    state = Archive.open(storage).state()
    assert (state.number, len(state.files)) == (120, 120)
    assert state.covered == {TopicPartition("t", 0): (OffsetRange(0, 120),)}
    assert sorted(part.first for file in state.files.values() for part in file.parts) == list(range(120))
    shown = created(storage).listed_by_spark()
    assert sorted(shown) == sorted(storage.uri(path) for path in state.files)


def test_a_commit_that_does_not_follow_is_refused_and_not_made(archive, storage):
    append(archive, rows=5)
    before = archive.state()
    for bad, reason in (
        (
            ManifestCommit("append", 1, covered=(CoveredRange("t", 0, 4, 6),)),
            "offsets from 4 are archived already, up to 5",
        ),
        (ManifestCommit("compact", 1, remove=(new_path(),)), "which is not in the archive"),
        (ManifestCommit("append", 1, add=(next(iter(before.files.values())),)), "in the archive already"),
        (ManifestCommit("append", 1, add=(file_of(new_path())._replace(path="x"),)), "damaged"),
    ):
        with pytest.raises(PipelineError, match=reason):
            archive.commit(lambda state, bad=bad: bad)
    assert archive.state() == before == Archive.open(storage).state()


def test_the_whole_state_is_saved_now_and_then_and_opened(archive, storage):
    for _ in range(205):
        append(archive)
    saved = [entry.name for entry in storage.list_directory("_manifest") if ".state." in entry.name]
    assert saved == ["00000000000000000100.state.json", "00000000000000000200.state.json"]
    assert Archive.open(storage).state() == archive.state()
    storage.delete(manifest.state_path(100))
    storage.delete(manifest.state_path(200))
    by_commits = Archive.open(storage)
    assert by_commits.state() == archive.state()
    append(by_commits)
    assert storage.exists(manifest.state_path(206))


def test_history_is_forgotten_but_what_is_needed(archive, storage, tmp_path):
    stale = Archive.open(storage)
    replaced = append(archive).path
    remove(archive, replaced)
    for _ in range(203):
        append(archive)
    assert archive.forget_history() == []
    day_ago = time.time() - FORGET_AFTER_MS / 1000 - 60
    for path in (tmp_path / "archive" / "_manifest").iterdir():
        os.utime(path, (day_ago, day_ago))
    forgotten = archive.forget_history()
    assert sorted(forgotten) == [manifest.commit_path(number) for number in range(100)]
    # With the commit that removed it, it would be forgotten whose the file was.
    assert not storage.exists(replaced)
    assert Archive.open(storage).state() == stale.state() == archive.state()
    append(stale)
    assert Archive.open(storage).state().number == 206
    assert archive.forget_history() == []


def test_a_hole_in_the_manifest_is_told(archive, storage):
    for _ in range(3):
        append(archive)
    storage.delete(manifest.commit_path(2))
    with pytest.raises(PipelineError, match=r"commit 2 is missing in the manifest \(_manifest/0+2.json\)"):
        Archive.open(storage)


def test_a_first_commit_that_is_gone_is_named(archive, storage):
    append(archive)
    storage.delete(manifest.commit_path(0))
    with pytest.raises(PipelineError, match=r"commit 0 is missing in the manifest \(_manifest/0+.json\)"):
        Archive.open(storage)


def test_a_file_that_no_commit_can_be_is_told(archive, storage, tmp_path):
    for _ in range(2):
        append(archive)
    far = 10**19
    storage.create(manifest.commit_path(far), storage.read(manifest.commit_path(2)))
    with pytest.raises(PipelineError, match=r"commit 3 is missing"):
        Archive.open(storage)
    storage.delete(manifest.commit_path(far))
    storage.delete(manifest.commit_path(2))
    os.mkfifo(tmp_path / "archive" / manifest.commit_path(2))
    with pytest.raises(PipelineError, match=r"0+2.json: is a FIFO"):
        Archive.open(storage)


def test_no_history_is_forgotten_for_a_state_of_another(archive, storage, tmp_path):
    for _ in range(105):
        append(archive)
    storage.create(manifest.state_path(10**19), storage.read(manifest.state_path(100)))
    assert archive.forget_history(older_than_ms=-3_600_000) == []
    storage.delete(manifest.state_path(10**19))
    assert Archive.open(storage).state() == archive.state()


def test_a_commit_that_is_gone_from_the_end_is_told_to_who_knew_it(archive, storage):
    append(archive)
    storage.delete(manifest.commit_path(1))
    with pytest.raises(PipelineError, match="commit 1 is missing"):
        archive.state()


def test_a_commit_of_another_history_is_told(archive, storage):
    append(archive)
    other = manifest.encode_commit(1, ManifestCommit("observe", 5), "")
    append(archive)
    storage.replace(manifest.commit_path(1), other)
    with pytest.raises(PipelineError, match=r"0+1.json: does not follow on the commit before it"):
        Archive.open(storage)


def test_a_damaged_commit_is_told_and_nothing_is_added_after_it(archive, storage):
    other = Archive.open(storage)
    append(archive)
    data = storage.read(manifest.commit_path(1))
    storage.replace(manifest.commit_path(1), data[:-40])
    with pytest.raises(PipelineError, match=r"0+1.json: damaged"):
        append(other)
    assert not storage.exists(manifest.commit_path(2))


def test_a_full_disk_leaves_the_archive_as_it_was(archive, storage, monkeypatch):
    append(archive)
    before = archive.state()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PipelineError, match="no space left on device; archived records stay readable"):
        archive.commit(lambda state: ManifestCommit("observe", 5))
    monkeypatch.undo()
    assert archive.state() == before == Archive.open(storage).state()
    assert append(archive).path in paths_of(Archive.open(storage))


def test_files_of_a_dead_writer_are_leftovers(archive, storage, dead):
    committed = append(archive).path
    killed = stage(archive, dead)
    half_done = new_path(killed)
    storage.create(half_done, b"")
    assert archive.leftovers() == [half_done, f"_staging/{killed}"]
    assert archive.foreign() == []
    assert Archive.open(storage).remove_leftovers() == [half_done, f"_staging/{killed}"]
    assert archive.leftovers() == []
    assert [entry.name for entry in walk(storage, "topic=t")] == [committed]
    assert list(walk(storage, "_staging")) == []


def test_a_dead_writer_keeps_what_it_has_committed(archive, storage, dead):
    killed = stage(archive, dead)
    committed = append(archive, new_path(killed)).path
    assert archive.remove_leftovers() == [f"_staging/{killed}"]
    assert storage.exists(committed)


def test_files_of_a_living_writer_are_left_alone(archive, storage):
    writer = stage(archive, owner.this_process())
    storage.create(new_path(writer), b"")
    assert (archive.remove_leftovers(), archive.foreign()) == ([], [])
    assert storage.exists(new_path(writer))


@pytest.mark.parametrize(
    ("change", "hours", "alive"),
    [
        ({}, 48, True),
        ({"start": "1"}, 0, False),
        ({"boot": "another"}, 0, False),
        ({"host": "another"}, 23, True),
        ({"host": "another"}, 25, False),
    ],
)
def test_a_writer_is_told_from_another_process_and_asked_only_where_it_is(archive, tmp_path, change, hours, alive):
    writer = stage(archive, owner.this_process()._replace(**change))
    then = time.time() - hours * 3600
    for path in (tmp_path / "archive" / "_staging").rglob("*"):
        os.utime(path, (then, then))
    assert archive.leftovers() == ([] if alive else [f"_staging/{writer}"])


@pytest.mark.parametrize(("hours", "alive"), [(23, True), (25, False)])
def test_a_writer_that_nobody_knows_is_given_a_day(archive, storage, tmp_path, hours, alive):
    writer = stage(archive, owner.this_process())
    storage.replace(owner.owner_path(writer), b"{")
    then = time.time() - hours * 3600
    for path in (tmp_path / "archive" / "_staging").rglob("*"):
        os.utime(path, (then, then))
    assert archive.leftovers() == ([] if alive else [f"_staging/{writer}"])


def test_replaced_files_are_leftovers_unless_somebody_keeps_them(archive, storage, dead):
    one, two = append(archive).path, append(archive).path
    keeper = stage(archive, owner.this_process(), keeps=(one,))
    killed = stage(archive, dead, keeps=(two,))
    remove(archive, one, two)
    assert archive.foreign() == []
    assert archive.remove_leftovers() == [two, f"_staging/{killed}"]
    storage.delete(f"_staging/{keeper}", recursive=True)
    assert archive.remove_leftovers() == [one]


def test_foreign_files_are_told_and_not_removed(archive, storage):
    committed = append(archive).path
    copy = committed.replace("-00000", "-00001")
    directory = "topic=t/date=2024-02-29"
    others = [copy, f"{directory}/part-0.parquet", f"{directory}/x", "topic=u/x.parquet", "x.parquet", "a/b/x.parquet"]
    # pyarrow takes whatever it finds for Parquet.
    others += ["notes.txt", "a/b/notes.txt", "lost+found/x"]
    for path in (*others, "_mine/x.parquet", "_mine.txt", f"{directory}/.x.parquet.crc", "a/_b/x"):
        storage.create(path, b"")
    assert archive.foreign() == sorted(others)
    assert archive.remove_leftovers() == []
    assert all(storage.exists(path) for path in others)


@pytest.mark.timeout(30)
def test_links_that_lead_round_are_foreign(archive, storage, tmp_path):
    committed, root = append(archive).path, tmp_path / "archive"
    (root / "topic=u").symlink_to("topic=t")  # each row twice
    for link in ("all", "more", "topic=t/back", "topic=t/again"):
        (root / link).symlink_to(root)
    (root / "topic=t" / "nowhere").symlink_to("nowhere")
    os.mkfifo(root / "fifo")
    there = committed.replace("topic=t", "topic=u")
    links = ["all", "more", "topic=t/again", "topic=t/back", "topic=u/again", "topic=u/back"]
    assert archive.foreign() == sorted(["fifo", there, *links])
    assert archive.leftovers() == []


def test_a_committed_file_that_a_link_leads_to_is_no_leftover(archive, storage, tmp_path, dead):
    killed = stage(archive, dead)
    committed = append(archive, new_path(killed)).path
    half_done = new_path(killed, 1)
    storage.create(half_done, b"")
    (tmp_path / "archive" / "topic=u").symlink_to("topic=t")
    archive.remove_leftovers()
    assert storage.exists(committed)
    assert not storage.exists(half_done)


def test_only_root_may_look_into_lost_and_found(archive, storage, monkeypatch):
    storage.create("lost+found/x", b"")
    storage.create("mine/x", b"")
    list_directory = storage.list_directory

    def closed(path: str) -> list[DirectoryEntry]:
        if path in ("lost+found", "mine"):
            raise PipelineError(f"{path}: permission denied")
        return list_directory(path)

    monkeypatch.setattr(storage, "list_directory", closed)
    assert archive.foreign() == ["mine"]


def test_unfinished_manifest_files_are_leftovers_when_they_are_old(archive, storage, tmp_path):
    for name in ("_manifest/.1.json.ab.tmp", "_spark_metadata/.1.ab.tmp", "_manifest/.2.json.ab.tmp"):
        storage.create(name, b"")
    then = time.time() - 2 * 3600
    for name in ("_manifest/.1.json.ab.tmp", "_spark_metadata/.1.ab.tmp"):
        os.utime(tmp_path / "archive" / name, (then, then))
    assert archive.remove_leftovers() == ["_manifest/.1.json.ab.tmp", "_spark_metadata/.1.ab.tmp"]


def test_an_archive_of_ten_thousand_files_opens_at_once(archive, storage):
    for batch in range(100):
        paths = [new_path(f"{batch:012x}", number) for number in range(100)]
        files = tuple(file_of(path, batch * 100 + n, partitions=3) for n, path in enumerate(paths))
        archive.commit(lambda state, files=files: ManifestCommit("append", 1, add=files))
    began = time.perf_counter()
    state = Archive.open(storage).state()
    took = time.perf_counter() - began
    assert (state.number, len(state.files)) == (100, 10_000)
    # It takes 0.2 s on two cores that others use as well; the bound is for a machine that is busier than that.
    assert took < 5, f"{took:.2f} s"


def test_settings_are_what_the_file_says(archive, storage):
    document = json.loads(storage.read(manifest.commit_path(0)))
    assert document["settings"] == dict(archive.state().settings)
