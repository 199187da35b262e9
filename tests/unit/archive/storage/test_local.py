"""Local storage, locations and recursive listing."""

import errno
import os
import resource
import threading
from pathlib import Path

import pytest

from kbroker.archive.errors import ArchiveError
from kbroker.archive.storage import is_local, open_storage
from kbroker.archive.storage.local import LocalStorage
from kbroker.archive.storage.storage import DirectoryEntry, FileMissingError, walk


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "root"))


def list_files(storage: LocalStorage) -> list[str]:
    return sorted(entry.name for entry in walk(storage))


def test_one_of_many_concurrent_creations_wins(storage: LocalStorage) -> None:
    winners: list[int] = []
    barrier = threading.Barrier(8)

    def create(number: int) -> None:
        barrier.wait()
        if storage.create("d/one", bytes([number]) * 1000):
            winners.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(winners) == 1
    assert storage.read("d/one") == bytes(winners) * 1000
    assert list_files(storage) == ["d/one"]


def test_listings_have_names_sizes_times_and_types(storage: LocalStorage, tmp_path: Path) -> None:
    """Links to directories are files: nothing outside of the storage is listed, and no cycle is followed."""
    storage.create("d/f", b"123")
    storage.create("a", b"")
    os.utime(tmp_path / "root" / "a", ns=(0, 1_700_000_000_123_000_000))
    (tmp_path / "root" / "link").symlink_to("d")
    (tmp_path / "root" / "d" / "up").symlink_to("..")
    a, d, link = storage.list_directory("")
    assert a == DirectoryEntry("a", 0, 1_700_000_000_123, False)
    assert (d.name, d.is_directory, link.is_directory) == ("d", True, False)
    assert [entry.name for entry in walk(storage)] == ["a", "d/f", "d/up", "link"]
    assert list(walk(storage, "absent")) == []


@pytest.mark.timeout(120)
def test_only_regular_files_are_read(storage: LocalStorage, tmp_path: Path) -> None:
    """Others may block forever."""
    root = tmp_path / "root"
    storage.create("directory/x", b"")
    os.mkfifo(root / "FIFO")
    (root / "device").symlink_to("/dev/zero")
    for name in ("directory", "FIFO", "device"):
        for call in (storage.read, storage.size):
            with pytest.raises(ArchiveError, match=f"root/{name}: is not a file$"):
                call(name)
    os.truncate(root / "directory" / "x", 1 << 40)
    with pytest.raises(ArchiveError, match=r"directory/x: has 1099511627776 bytes, at most 67108864 are read"):
        storage.read("directory/x")


def test_other_kinds_of_files_are_reported(storage: LocalStorage) -> None:
    """The message begins with the path."""
    storage.create("a", b"")
    with pytest.raises(ArchiveError, match=r"root/a/b: not a directory"):
        storage.create("a/b", b"")
    with pytest.raises(ArchiveError, match="root/a: not a directory"):
        storage.list_directory("a")


@pytest.mark.parametrize("call", ["create", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_no_partial_file(
    storage: LocalStorage, call: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.create("old", b"1")

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(ArchiveError, match="no space left on device; archived records stay readable"):
        getattr(storage, call)("new" if call == "create" else "old", b"2")
    monkeypatch.undo()
    assert list_files(storage) == ["old"]
    assert storage.read("old") == b"1"


def test_a_file_size_limit_is_reported_as_a_full_disk(storage: LocalStorage) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(ArchiveError, match="/new: no space left on device; archived records stay readable"):
            storage.create("new", bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list_files(storage) == []


def test_a_directory_has_one_name_whatever_links_lead_to_it(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    assert LocalStorage(str(tmp_path / "link" / "x")).root == str(tmp_path / "x")
    assert open_storage(f"file://{tmp_path}/x").root == str(tmp_path / "x")
    assert open_storage(f"file:{tmp_path}/a b%20").uri("c") == f"file://{tmp_path}/a b%20/c"
    assert open_storage("a:b").root == os.path.realpath("a:b")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "name is empty"),
        ("hdfs://node/a", "hdfs://node/a: archives are in local directories, or at s3, gs, abfs, abfss: URIs"),
        ("file://host/a", "another host"),
    ],
)
def test_locations_that_cannot_be_opened_are_rejected(location: str, message: str) -> None:
    with pytest.raises(ArchiveError, match=message):
        open_storage(location)


def test_local_locations() -> None:
    for location in ("/a", "a:b", "file:/a", "FILE:///a", "a b/c:/d"):
        assert is_local(location), location
    for location in ("s3://bucket/a", "x:/a"):
        assert not is_local(location), location


def test_a_missing_file_is_reported(storage: LocalStorage) -> None:
    for call in (storage.read, storage.size):
        with pytest.raises(FileMissingError, match=r"root/no: no such file or directory"):
            call("no")
