"""`kbroker backup` and `kbroker restore` without a running broker: what is refused, and what a failure leaves."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.cli.backup import MANIFEST, backup, restore
from kbroker.cli.common.errors import CliError
from kbroker.runtime.real_disk import RealDisk

JOURNAL = "coordination/coordination.journal"
LOG = "t-0/00000000000000000000.log"
FILES = {"meta.properties": b"node.id=1\n", JOURNAL: b"topics", LOG: b"record " * 9, "secure/ca.key": b"key"}


def content(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    directory = tmp_path / "data"
    left_out = {"t-0/00000000000000000000.index.deleted": b"", "a-0.0123456789abcdef0123456789abcdef-delete/x": b""}
    for name, text in {**FILES, **left_out}.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(text)
    (directory / "secure/ca.key").chmod(0o600)
    return directory


@pytest.fixture
def copy(data: Path, tmp_path: Path) -> Path:
    backup(str(data), str(tmp_path / "copy"))
    return tmp_path / "copy"


def test_a_restored_directory_has_the_same_files(
    copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    restore(str(copy), str(tmp_path / "new"), as_json=True)
    assert json.loads(capsys.readouterr().out)["files"] == len(FILES)
    assert content(tmp_path / "new") == FILES
    assert (tmp_path / "new/secure/ca.key").stat().st_mode & 0o777 == 0o600
    assert copy.stat().st_mode & 0o777 == 0o700


def test_a_backup_needs_a_new_directory_and_a_restore_an_empty_one(data: Path, copy: Path, tmp_path: Path) -> None:
    with pytest.raises(CliError, match="copy exists: a backup needs a new directory"):
        backup(str(data), str(copy))
    with pytest.raises(CliError, match="put the backup elsewhere"):
        backup(str(data), str(data / "backup"))
    with pytest.raises(CliError, match="data is not empty"):
        restore(str(copy), str(data))
    assert content(data).items() >= FILES.items()


def test_the_directory_of_one_broker_of_a_cluster_is_no_backup(data: Path, tmp_path: Path) -> None:
    (data / JOURNAL).unlink()
    (data / "coordination").rmdir()
    with pytest.raises(CliError, match="has no metadata of topics"):
        backup(str(data), str(tmp_path / "copy"))


def test_a_directory_that_an_unknown_process_uses(data: Path, tmp_path: Path) -> None:
    lock = RealDisk().lock(str(data / ".lock"))
    (data / ".lock").write_text("")
    with pytest.raises(CliError, match="run this in its container"):
        backup(str(data), str(tmp_path / "copy"))
    lock.close()


Damage = Callable[[Path], object]


def change_manifest(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(copy: Path) -> None:
        manifest = json.loads((copy / MANIFEST).read_text())
        change(manifest)
        (copy / MANIFEST).write_text(json.dumps(manifest))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda copy: (copy / LOG).write_bytes(b"recorD " * 9), "t-0/0+.log is not what was written"),
        (lambda copy: (copy / LOG).write_bytes(b"record " * 8), "t-0/0+.log is not what was written"),
        (lambda copy: (copy / JOURNAL).unlink(), "incomplete: .*coordination.journal is missing"),
        (lambda copy: (copy / MANIFEST).unlink(), "no complete backup: backup.json is missing"),
        (lambda copy: os.truncate(copy / MANIFEST, 100), "backup.json cannot be read"),
        (change_manifest(lambda each: each.pop("files")), "backup.json has other fields"),
        (change_manifest(lambda each: each["files"][0].update(path="../../etc/x")), "backup.json has other fields"),
        (change_manifest(lambda each: each["files"][0].update(size="9")), "backup.json has other fields"),
        (change_manifest(lambda each: each.update(files=each["files"][:1])), "backup.json has other fields"),
        (change_manifest(lambda each: each.update(version=2)), "made by a newer version"),
    ],
)
def test_a_damaged_backup_is_refused(
    damage: Callable[[Path], object], message: str, copy: Path, tmp_path: Path
) -> None:
    damage(copy)
    with pytest.raises(CliError, match=message):
        restore(str(copy), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists() or not os.listdir(tmp_path / "new")


# Locks a data directory as a broker does, and writes to one file after the other.
WRITER = """
import sys
from kbroker.runtime.real_disk import RealDisk
directory = sys.argv[1]
lock = RealDisk().lock(directory + "/.lock")
files = [open(directory + name, "ab", buffering=0) for name in ("/a-0/log", "/z-0/log")]
while True:
    for file in files:
        file.write(b".")
"""


def test_all_files_are_from_one_moment(data: Path, tmp_path: Path) -> None:
    """The files between them take so long to open that the writer would have written much more to one of them."""
    logs = [data / "a-0/log", data / "z-0/log"]
    for log in logs:
        log.parent.mkdir()
        for index in range(500):
            (log.parent / f"{index}").touch()
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(data)])
    try:
        until(lambda: all(log.exists() and log.stat().st_size > 100 for log in logs), "it writes")
        # The writer may not have run during one of them.
        for number in range(5):
            backup(str(data), str(tmp_path / f"copy-{number}"))
            first, last = ((tmp_path / f"copy-{number}" / log.relative_to(data)).stat().st_size for log in logs)
            assert 0 <= first - last <= 1
            size = logs[0].stat().st_size
            assert size >= first > 100
            until(lambda size=size: logs[0].stat().st_size > size, "it goes on")
    finally:
        process.kill()
        process.wait()
    restore(str(tmp_path / "copy-4"), str(tmp_path / "new"))


def until(condition: Callable[[], object], description: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, description
        time.sleep(0.01)
