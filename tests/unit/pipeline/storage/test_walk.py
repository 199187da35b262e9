"""Recursive listing in the presence of symbolic links and unreadable directories."""

from pathlib import Path

import pytest

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import DirectoryEntry
from kbroker.pipeline.storage.walk import walk


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
