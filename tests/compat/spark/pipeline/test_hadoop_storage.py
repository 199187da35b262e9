"""HadoopStorage with the local file system, through the JVM of a Spark session."""

import hashlib
import os

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage import open_storage
from kbroker.pipeline.storage.hadoop import HadoopStorage
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import FileMissingError, walk

pytestmark = [pytest.mark.spark, pytest.mark.feature("archive files")]


@pytest.mark.parametrize("has_context", [True, False])
def test_file_operations(spark, tmp_path, has_context, monkeypatch):
    """`has_context`: Hadoop has a FileContext, as for HDFS, or has none, as for some object stores."""
    if not has_context:
        monkeypatch.setattr(HadoopStorage, "_open_file_context", lambda *_: None)
    storage, local = HadoopStorage(f"file://{tmp_path}/d", spark), LocalStorage(f"{tmp_path}/d")
    assert storage.root == f"file:{tmp_path}/d"
    assert storage.create("a/b", b"\x00\xff1")
    assert not storage.create("a/b", b"2")
    storage.replace("a/c", b"3")
    storage.replace("a/c", bytes(range(256)) * 1000)
    assert (storage.read("a/b"), storage.read("a/c")) == (b"\x00\xff1", bytes(range(256)) * 1000)
    assert (storage.size("a/c"), storage.sha256("a/c")) == (256_000, local.sha256("a/c"))
    storage.rename("a/b", "x/y/b")
    with pytest.raises(PipelineError, match=r"a/c: already exists"):
        storage.rename("x/y/b", "a/c")
    assert (storage.exists("a/b"), storage.exists("x/y/b")) == (False, True)
    assert [entry.name for entry in walk(storage)] == ["a/c", "x/y/b"]
    assert [(e.name, e.is_directory) for e in storage.list_directory("")] == [("a", True), ("x", True)]
    # Hadoop creates a checksum file next to a local file; its name begins with a dot.
    assert storage.list_directory("a") == [
        entry for entry in local.list_directory("a") if not entry.name.startswith(".")
    ]
    assert storage.list_directory("absent") == []
    for call in (storage.read, storage.size, storage.sha256):
        with pytest.raises(FileMissingError, match=r"/d/no: no such file or directory"):
            call("no")
    storage.delete("a", recursive=True)
    storage.delete("a/c")
    assert [entry.name for entry in walk(storage)] == ["x/y/b"]
    with pytest.raises(PipelineError, match=r"nonsense://x/y.*[Nn]o FileSystem for scheme"):
        open_storage("nonsense://x/y", spark)


@pytest.mark.timeout(120)
def test_only_regular_files_are_read(spark, tmp_path):
    storage = HadoopStorage(f"file://{tmp_path}/d", spark)
    storage.create("a/b", b"0123456789")
    assert [storage.read_range("a/b", *bounds) for bounds in ((0, 3), (8, 9), (10, 1), (11, 1))] == [
        b"012",
        b"89",
        b"",
        b"",
    ]
    with pytest.raises(PipelineError, match="a/b: has 10 bytes, at most 9 are read"):
        storage.read("a/b", max_bytes=9)
    os.mkfifo(tmp_path / "d" / "fifo")
    (tmp_path / "d" / "a" / "up").symlink_to("..")
    (tmp_path / "d" / "c").symlink_to("a")
    # Hadoop reports 0 bytes for a FIFO, and a missing file for a directory that is opened.
    assert (storage.size("fifo"), storage.read("fifo"), storage.sha256("fifo")) == (
        0,
        b"",
        hashlib.sha256().hexdigest(),
    )
    for call in (storage.read, storage.size, storage.sha256):
        with pytest.raises(PipelineError, match="/d/a: is a directory"):
            call("a")
    entries = [(entry.name, entry.is_directory) for entry in walk(storage)]
    assert entries == [("a/b", False), ("a/up", True), ("c/b", False), ("c/up", True), ("fifo", False)]
