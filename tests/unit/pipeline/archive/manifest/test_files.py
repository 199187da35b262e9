"""Manifest files: names, listing, and reading of large and damaged files."""

import os
import tracemalloc
from pathlib import Path

import pytest

from kbroker.pipeline.archive.manifest import files
from kbroker.pipeline.archive.manifest.codec import encode_commit
from kbroker.pipeline.archive.manifest.files import list_manifest, read_manifest_file
from kbroker.pipeline.archive.manifest.model import ManifestCommit
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import MAX_READ_BYTES
from tests.unit.support.archives import make_file, new_data_path


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(str(tmp_path))


def test_only_commits_and_state_files_are_listed(storage: LocalStorage) -> None:
    for name in (
        "00000000000000000017.json",
        "00000000000000000018.json",
        "00000000000000000018.state.json",
        ".00000000000000000019.json.x.tmp",
        "x",
    ):
        storage.create(f"_manifest/{name}", b"")
    assert list_manifest(storage) == ({17, 18}, {18})


def test_a_large_file_is_read_if_its_checksum_is_correct(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_READ_BYTES", 100)
    monkeypatch.setattr(files, "_PIECE_BYTES", 7)
    data = encode_commit(3, ManifestCommit("append", 5, add=(make_file(new_data_path()),)), "00")
    storage.create("f", data)
    assert read_manifest_file(storage, "f") == data
    for damaged in (data[:200], data[:-1], data.replace(b'"append"', b'"Append"', 1)[1:], data + b" ", bytes(200)):
        storage.replace("f", damaged)
        with pytest.raises(PipelineError, match=rf"/f: damaged, .*\({len(damaged)} bytes, checksum mismatch\)"):
            read_manifest_file(storage, "f")


def test_a_huge_file_is_not_loaded(storage: LocalStorage, tmp_path: Path) -> None:
    storage.create("f", encode_commit(3, ManifestCommit("observe", 5), ""))
    os.truncate(tmp_path / "f", 1 << 40)
    tracemalloc.start()
    try:
        with pytest.raises(PipelineError, match="damaged"):
            read_manifest_file(storage, "f")
        assert tracemalloc.get_traced_memory()[1] < MAX_READ_BYTES
    finally:
        tracemalloc.stop()
