"""Reading complete, incomplete and damaged manifests."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.layout import OffsetRange, commit_path, state_path
from kbroker.pipeline.archive.manifest import (
    ArchiveState,
    CoveredRange,
    ManifestCommit,
    apply_commits,
    decode_commit,
    encode_commit,
    encode_state,
)
from kbroker.pipeline.archive.verification.commit_chain import read_chain
from kbroker.pipeline.archive.verification.findings import format_finding
from kbroker.pipeline.storage.local import LocalStorage
from tests.unit.support.archives import make_file, new_data_path

TP = TopicPartition("t", 0)


@pytest.fixture
def manifest(tmp_path: Path) -> LocalStorage:
    """Commits 0 to 5 and a state file after 3; each commit but the first adds a file with ten offsets."""
    storage = LocalStorage(str(tmp_path))
    digest, state = "", ArchiveState()
    for number in range(6):
        commit = ManifestCommit("create", 1, settings={"format": "kbroker-archive", "format_version": 1})
        if number:
            file = make_file(new_data_path(number=number), number * 10, 10)
            covered = CoveredRange("t", 0, number * 10, number * 10 + 10)
            commit = ManifestCommit("append", number, add=(file,), covered=(covered,))
        data = encode_commit(number, commit, digest)
        digest = decode_commit(data, number, "").digest
        storage.create(commit_path(number), data)
        state = apply_commits(state, [(number, commit)])
        if number == 3:
            storage.create(state_path(3), encode_state(state, digest))
    return storage


def read(manifest: LocalStorage) -> tuple[list[str], int]:
    """Return the findings, and the number of files in the resulting state."""
    chain = read_chain(manifest)
    return list(map(format_finding, chain.findings)), len(chain.state.files)


def test_a_complete_manifest_results_in_its_state(manifest: LocalStorage) -> None:
    chain = read_chain(manifest)
    assert chain.findings == []
    assert chain.state.commit_number == 5
    assert chain.state.covered == {TP: (OffsetRange(10, 60),)}


def test_a_removed_history_is_no_difference(manifest: LocalStorage) -> None:
    for number in range(3):
        manifest.delete(commit_path(number))
    assert read(manifest) == ([], 5)
    manifest.delete(commit_path(3))
    assert read(manifest) == ([], 5)
    manifest.delete(state_path(3))
    assert read(manifest) == ([f"manifest: {commit_path(0)}: commits 0 to 3 are missing"], 2)


def test_a_state_file_replaces_missing_commits(manifest: LocalStorage) -> None:
    manifest.delete(commit_path(2))
    assert read(manifest) == ([f"manifest: {commit_path(2)}: commit 2 is missing"], 5)
    manifest.delete(commit_path(4))
    findings = [f"manifest: {commit_path(number)}: commit {number} is missing" for number in (2, 4)]
    assert read(manifest) == (findings, 4)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.replace(b'"rows":10', b'"rows":11'),
        lambda data: data[:40],
        lambda data: b"",
        lambda data: b"\xff" + data,
        lambda data: b"[]",
    ],
    ids=["changed", "truncated", "empty", "binary", "other JSON"],
)
@pytest.mark.parametrize("path", [commit_path(1), commit_path(5), state_path(3)])
def test_a_damaged_file_is_found(manifest: LocalStorage, path: str, damage: Callable[[bytes], bytes]) -> None:
    manifest.replace(path, damage(manifest.read(path)))
    findings, files = read(manifest)
    assert [finding.split(": ")[:2] for finding in findings] == [["manifest", path]]
    assert files == (4 if path == commit_path(5) else 5)


def test_a_commit_of_another_history_is_found(manifest: LocalStorage) -> None:
    other = ManifestCommit("append", 2, covered=(CoveredRange("t", 0, 20, 30),))
    manifest.replace(commit_path(2), encode_commit(2, other, "0" * 64))
    findings, _ = read(manifest)
    assert findings == [
        f"manifest: {commit_path(2)}: continues another commit 1 than the one in the manifest",
        f"manifest: {commit_path(3)}: continues another commit 2 than the one in the manifest",
        f"manifest: {state_path(3)}: is not the state that the commits up to 3 produce",
    ]


def test_a_commit_that_covers_offsets_again_is_found_and_applied(manifest: LocalStorage) -> None:
    digest = decode_commit(manifest.read(commit_path(5)), 5, "").digest
    commit = ManifestCommit("append", 6, covered=(CoveredRange("t", 0, 55, 70),))
    manifest.create(commit_path(6), encode_commit(6, commit, digest))
    chain = read_chain(manifest)
    assert list(map(format_finding, chain.findings)) == [
        f"manifest: {commit_path(6)}: t-0: offsets from 55 are already archived, up to 60"
    ]
    assert chain.state.covered == {TP: (OffsetRange(10, 70),)}


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("path_of", "problem"),
    [(commit_path, "'append' commit 3 instead of commit"), (state_path, "'state' 3 instead of state")],
)
def test_a_file_with_a_huge_number_is_found(
    manifest: LocalStorage, path_of: Callable[[int], str], problem: str
) -> None:
    number = 10**19
    manifest.create(path_of(number), manifest.read(path_of(3)))
    findings = [
        f"manifest: {path_of(number)}: damaged, or not a file of an archive's manifest ({problem} {number})",
        f"manifest: {commit_path(6)}: commits 6 to {number - 1} are missing",
    ]
    assert read(manifest) == (findings, 5)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["FIFO", "directory", "socket", "device", "cyclic link", "huge file"])
@pytest.mark.parametrize("path", [commit_path(5), state_path(3)])
def test_other_kinds_of_files_are_found(manifest: LocalStorage, path: str, kind: str) -> None:
    location = Path(manifest.root, path)
    location.unlink()
    expected = f"is a {kind}"
    if kind == "FIFO":
        os.mkfifo(location)
    elif kind == "directory":
        location.mkdir()
    elif kind == "socket":
        os.mknod(location, stat.S_IFSOCK | 0o600)
    elif kind == "device":
        location.symlink_to("/dev/zero")
    elif kind == "cyclic link":
        location.symlink_to(location)
        expected = ""  # it is not listed
    else:
        location.touch()
        os.truncate(location, 1 << 40)
        expected = f"damaged, or not a file of an archive's manifest ({1 << 40} bytes, checksum mismatch)"
    findings = [f"manifest: {path}: {expected}"] if expected else []
    assert read(manifest) == (findings, 5 if path == state_path(3) else 4)
