"""Dry runs of recovery on an overlay disk."""

from pathlib import Path
from random import Random

import pytest

from kbroker.runtime.real_disk import RealDisk
from kbroker.storage import file_names
from kbroker.storage.inspect.recovery_dry_run import OverlayDisk, dry_run_recovery
from tests.unit.support.damaged_log import edit, write_sound_log
from tests.unit.support.log_lab import NOW, TP, Lab


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return write_sound_log(tmp_path)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["tail", "middle", "index", "snapshot", "epochs", "swap"])
def test_a_dry_run_returns_the_repairs_of_recovery_and_changes_nothing(lab: Lab, damage: str, clean: bool) -> None:
    match damage:
        case "tail":
            edit(lab, ".log", -1, lambda data: data.__delitem__(slice(-10, None)))
        case "middle":
            edit(lab, ".log", 1, lambda data: data.__setitem__(400, data[400] ^ 1))
        case "index":
            edit(lab, ".index", 0, lambda data: data.extend(bytes(5)))
        case "snapshot":
            edit(lab, ".snapshot", -1, lambda data: data.__setitem__(20, 1))
        case "epochs":
            (lab.path / file_names.LEADER_EPOCHS).write_bytes(b"?")
        case "swap":
            name = lab.files(".log")[0]
            (lab.path / (name + file_names.SWAP)).write_bytes((lab.path / name).read_bytes())
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in lab.path.iterdir()}
    lines = dry_run_recovery(lab.disk, str(lab.path), TP, 0, 0, clean, NOW, Random(1), {})
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in lab.path.iterdir()} == before
    assert lines == lab.open(clean=clean).repairs
    # After a clean shutdown the log is not read; after an unclean one no snapshot above the recovery point is used.
    assert lines or (damage, clean) in (("middle", True), ("snapshot", False))


def test_an_overlay_disk_shows_changes_and_makes_none(tmp_path: Path) -> None:
    path = f"{tmp_path}/a"
    Path(path).write_bytes(b"0123456789")
    disk = OverlayDisk(RealDisk())
    file = disk.open(path)
    assert file.append(b"abcd") == 4
    assert (file.size(), file.pread(6, 8), file.pread(9, 12)) == (14, b"89abcd", b"cd")
    file.truncate(12)
    assert disk.read(path) == b"0123456789ab"
    file.truncate(4)
    file.append(b"x")
    assert disk.read(path) == b"0123x"
    disk.rename(path, f"{tmp_path}/b")
    disk.write_atomic(f"{tmp_path}/c", b"new")
    assert sorted(disk.listdir(str(tmp_path))) == ["b", "c"]
    assert (disk.exists(path), disk.size(f"{tmp_path}/b"), disk.read(f"{tmp_path}/c")) == (False, 5, b"new")
    disk.unlink(f"{tmp_path}/b")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{tmp_path}/b")
    with pytest.raises(FileNotFoundError):
        disk.open(path)
    assert disk.open(path, create=True).size() == 0
    disk.rmtree(str(tmp_path))
    assert disk.listdir(str(tmp_path)) == []
    assert Path(path).read_bytes() == b"0123456789"
