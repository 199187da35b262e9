"""Local storage, locations and recursive listing."""

import errno
import hashlib
import os
import resource
import stat
import threading
from pathlib import Path

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage import is_local, open_storage
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import DirectoryEntry, FileMissingError, read_lines, walk


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path / "root"))


def list_files(storage: LocalStorage) -> list[str]:
    return sorted(entry.name for entry in walk(storage))


def test_a_file_is_created_once(storage):
    assert storage.create("a/b/c", b"first")
    assert not storage.create("a/b/c", b"second")
    assert storage.read("a/b/c") == b"first"
    assert list_files(storage) == ["a/b/c"]


def test_one_of_many_concurrent_creations_wins(storage):
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


def test_files_are_replaced_renamed_and_deleted(storage):
    storage.replace("a", b"1")
    storage.replace("a", b"22")
    storage.rename("a", "x/y/b")
    assert (storage.exists("a"), storage.exists("x/y/b"), storage.size("x/y/b")) == (False, True, 2)
    assert storage.sha256("x/y/b") == hashlib.sha256(b"22").hexdigest()
    storage.delete("x", recursive=True)
    storage.delete("x/y/b")
    assert list_files(storage) == []


def test_a_rename_does_not_overwrite(storage):
    storage.create("a", b"1")
    storage.create("b", b"2")
    with pytest.raises(PipelineError, match="/b: already exists"):
        storage.rename("a", "b")
    assert (storage.read("a"), storage.read("b")) == (b"1", b"2")


def test_listings_have_names_sizes_times_and_types(storage, tmp_path):
    storage.create("d/f", b"123")
    storage.create("a", b"")
    os.utime(tmp_path / "root" / "a", ns=(0, 1_700_000_000_123_000_000))
    (tmp_path / "root" / "dead-link").symlink_to("nowhere")
    a, d = storage.list_directory("")
    assert a == DirectoryEntry("a", 0, 1_700_000_000_123, False)
    assert (d.name, d.is_directory) == ("d", True)
    assert [(entry.name, entry.size) for entry in walk(storage)] == [("a", 0), ("d/f", 3)]
    assert storage.list_directory("absent") == []
    assert list(walk(storage, "absent")) == []


@pytest.mark.timeout(120)
@pytest.mark.parametrize("call", ["read", "read_range", "size", "sha256"])
def test_only_regular_files_are_opened(storage, tmp_path, call):
    root = tmp_path / "root"
    storage.create("directory/x", b"")
    os.mkfifo(root / "FIFO")
    (root / "device").symlink_to("/dev/zero")
    (root / "cycle").symlink_to("cycle")
    os.mknod(root / "socket", stat.S_IFSOCK | 0o600)
    arguments = (0, 1) if call == "read_range" else ()
    for name in ("directory", "FIFO", "socket", "device"):
        with pytest.raises(PipelineError, match=f"root/{name}: is a {name}$"):
            getattr(storage, call)(name, *arguments)
    with pytest.raises(PipelineError, match="root/cycle: too many levels of symbolic links"):
        getattr(storage, call)("cycle", *arguments)


def test_a_file_that_is_too_large_is_not_read(storage, tmp_path):
    storage.create("a", b"0123456789")
    assert storage.read("a", max_bytes=10) == b"0123456789"
    with pytest.raises(PipelineError, match=r"root/a: has 10 bytes, at most 9 are read"):
        storage.read("a", max_bytes=9)
    os.truncate(tmp_path / "root" / "a", 1 << 40)
    with pytest.raises(PipelineError, match=r"root/a: has 1099511627776 bytes"):
        storage.read("a")


def test_ranges_of_a_file(storage):
    storage.create("a", b"0123456789")
    assert [storage.read_range("a", *bounds) for bounds in ((0, 3), (8, 2), (8, 9), (10, 1), (11, 1), (4, 0))] == [
        b"012", b"89", b"89", b"", b"", b""
    ]  # fmt: skip


def test_lines_are_read_a_piece_at_a_time(storage):
    for data in (b"", b"\n", b"a", b"a\n\nbc", (b"x" * 64_000 + b"\n\n") * 40):
        storage.replace("a", data)
        assert list(read_lines(storage, "a")) == data.split(b"\n")
    storage.replace("a", b"x" * 2_000_000)
    with pytest.raises(PipelineError, match="root/a: has a line of more than 65536 bytes"):
        list(read_lines(storage, "a"))


@pytest.mark.parametrize("call", ["read", "size", "sha256"])
def test_a_missing_file_is_reported(storage, call):
    with pytest.raises(FileMissingError, match=r"root/no: no such file or directory"):
        getattr(storage, call)("no")


def test_a_file_instead_of_a_directory_is_reported(storage):
    storage.create("a", b"")
    with pytest.raises(PipelineError, match=r"root/a/b: not a directory"):
        storage.create("a/b", b"")
    with pytest.raises(PipelineError, match="not a directory"):
        storage.list_directory("a")


@pytest.mark.parametrize("call", ["create", "replace"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_no_partial_file(storage, call, code, monkeypatch):
    storage.create("old", b"1")

    def fail(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(PipelineError, match="no space left on device; archived records stay readable"):
        getattr(storage, call)("new" if call == "create" else "old", b"2")
    monkeypatch.undo()
    assert list_files(storage) == ["old"]
    assert storage.read("old") == b"1"


def test_a_file_size_limit_is_reported_as_a_full_disk(storage):
    storage.create("old", b"1")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(PipelineError, match="/new: no space left on device; archived records stay readable"):
            storage.create("new", bytes(10_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list_files(storage) == ["old"]


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
        ("hdfs://node/a", "without Spark"),
        ("s3a://bucket/a", "without Spark"),
        ("file://host/a", "another host"),
    ],
)
def test_locations_that_cannot_be_opened_are_rejected(location: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        open_storage(location)


def test_only_other_schemes_need_spark() -> None:
    for location in ("/a", "a:b", "file:/a", "FILE:///a", "a b/c:/d"):
        assert is_local(location), location
    for location in ("hdfs://node/a", "s3a://bucket/a", "x:/a"):
        assert not is_local(location), location


@pytest.mark.timeout(120)
def test_links_are_followed_once_and_never_in_cycles(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    storage = LocalStorage(str(root))
    for name in ("a/f", "b/c/f", "d/f", "e/f"):
        storage.create(name, b"")
    (outside / "o").mkdir(parents=True)
    (outside / "o" / "g").touch()
    (outside / "back").symlink_to(root)
    for link, target in {
        "a/self": "../a", "a/up": "..", "b/c/first": "../../b", "b/c/other": "../../a", "b/c/cycle": "cycle",
        "d/e": "../e", "e/d": "../d", "d/more": outside, "e/again": outside, "e/dead": "absent",
    }.items():  # fmt: skip
        (root / link).symlink_to(target)
    entries = list(walk(storage))
    assert [entry.name for entry in entries if not entry.is_directory] == [
        "a/f", "b/c/f", "b/c/other/f", "d/e/again/o/g", "d/e/f", "d/f", "e/d/f", "e/f"
    ]  # fmt: skip
    # Each leads to a directory on the current path, or to one that another link has led to.
    assert [entry.name for entry in entries if entry.is_directory] == [
        "a/self", "a/up", "b/c/first", "b/c/other/self", "b/c/other/up", "d/e/again/back", "d/e/d", "d/more",
        "e/again", "e/d/e", "e/d/more",
    ]  # fmt: skip


class StorageWithUnreadableDirectory(LocalStorage):
    """The directory `unreadable` cannot be listed."""

    def list_directory(self, path: str) -> list[DirectoryEntry]:
        if path == "unreadable":
            raise PipelineError(f"{self.root}/unreadable: permission denied")
        return super().list_directory(path)


def test_a_directory_that_cannot_be_listed(tmp_path: Path) -> None:
    storage = StorageWithUnreadableDirectory(str(tmp_path))
    storage.create("unreadable/a", b"")
    storage.create("z", b"")
    (tmp_path / "long-link").symlink_to("x" * 300)
    with pytest.raises(PipelineError, match="unreadable: permission denied"):
        list(walk(storage))
    entries = [(entry.name, entry.is_directory) for entry in walk(storage, tolerant=True)]
    assert entries == [("long-link", False), ("unreadable", True), ("z", False)]
    assert [entry.name for entry in walk(storage, skip=lambda name: name != "z")] == ["z"]
