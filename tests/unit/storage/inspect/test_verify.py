"""Checking a partition's directory, and rehearsing what its next start would do."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from struct import pack

import pytest

from kbroker.runtime.disk import RealDisk
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.inspect.index_files import ABORTED_ENTRY, producer_entries
from kbroker.storage.inspect.partition_check import CheckpointedState, LogFinding, PartitionCheck
from kbroker.storage.inspect.recovery_dry_run import OverlayDisk, dry_run_recovery
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.producers.snapshot import encode_snapshot
from protocol.records.batch import TRANSACTIONAL, parse_header, patch_leader_epoch
from protocol.records.control import EndMarker, build_end_marker
from tests.unit.support.log_lab import NOW, TP, Lab, append, batch, fill

CLEAN = CheckpointedState()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A log of several segments, cleanly closed; producer 7 has written to the first ones."""
    lab = Lab(tmp_path, segment_bytes=3000, index_interval_bytes=300)
    log = lab.open()
    for n in range(30):
        append(log, batch(2, 40, NOW + 5 * n, producer_id=7, producer_epoch=0, base_sequence=2 * n))
    fill(log, 60)
    assert lab.close(log)
    assert len(lab.files(".log")) > 3
    return lab


def check(lab: Lab, known: CheckpointedState = CLEAN) -> list[LogFinding]:
    return list(PartitionCheck(lab.disk, str(lab.path), known, lambda size: None).findings())


def told(lab: Lab, known: CheckpointedState = CLEAN) -> list[tuple[str, int | None, int | None, str]]:
    return [(one.path.rpartition("/")[2], one.position, one.offset, one.what) for one in check(lab, known)]


def edit(lab: Lab, suffix: str, number: int, change: Callable[[bytearray], object]) -> str:
    """Change a file in place, without the broker's knowing; gives its name."""
    name = lab.files(suffix)[number]
    content = bytearray((lab.path / name).read_bytes())
    change(content)
    (lab.path / name).write_bytes(content)
    return name


def test_a_sound_log_is_sound(lab: Lab) -> None:
    assert check(lab) == []
    read: list[int] = []
    seen_check = PartitionCheck(lab.disk, str(lab.path), CheckpointedState(clean=False), read.append)
    assert list(seen_check.findings()) == []
    seen = seen_check.seen
    size = sum((lab.path / name).stat().st_size for name in lab.files(".log"))
    assert (seen.first_offset, seen.batches, seen.bytes, seen.unchecked) == (0, 90, size, size)
    assert seen.end_offset == lab.open(clean=True).log_end_offset
    assert sum(read) == size


def test_a_damaged_batch_has_its_place(lab: Lab) -> None:
    name = edit(lab, ".log", 0, lambda data: data.__setitem__(400, data[400] ^ 1))
    (found,) = check(lab)
    assert found.path.endswith(name)
    assert (found.what, found.is_problem) == ("a batch: its CRC is wrong", True)
    assert found.position is not None
    header = parse_header((lab.path / name).read_bytes(), found.position)
    assert (header.base_offset, found.position < 400 < found.position + header.size) == (found.offset, True)


def test_offset_index_entries_must_point_at_their_batches(lab: Lab) -> None:
    def move(data: bytearray) -> None:
        first, position, second = data[0:4], int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
        data[0:8] = first + pack(">i", position + 1)
        data[8:12] = pack(">i", second + 1)

    name = edit(lab, ".index", 1, move)
    (_, at, _, first), (_, after, _, second) = told(lab)
    assert (at, after) == (0, 8)
    assert "where no batch begins" in first
    assert "ends at offset" in second
    edit(lab, ".index", 1, lambda data: data.extend(pack(">ii", 10_000, 1 << 20)))
    assert f"points at byte {1 << 20} of" in told(lab)[-1][3]
    assert told(lab)[-1][0] == name


def test_time_index_entries_must_have_the_largest_timestamps(lab: Lab) -> None:
    def later(data: bytearray) -> None:
        data[7] += 1

    name = edit(lab, ".timeindex", 1, later)
    ((where, at, _, what),) = told(lab)
    assert (where, at) == (name, 0)
    assert what.startswith("has timestamp")
    edit(lab, ".timeindex", 0, lambda data: data.__delitem__(slice(-12, None)))
    assert "ends with timestamp" in told(lab)[0][3]


def test_missing_indexes_of_closed_segments(lab: Lab) -> None:
    for name in lab.files("index"):
        (lab.path / name).unlink()
    closed = len(lab.files(".log")) - 1
    assert [one[3] for one in told(lab)] == ["missing"] * (2 * closed)
    # Above the recovery point they are in nobody's way: the start makes them anew.
    assert told(lab, CheckpointedState(clean=False)) == []


def test_snapshots_must_agree_with_the_batches(lab: Lab) -> None:
    name = edit(lab, ".snapshot", -1, lambda data: data.__setitem__(20, 1))
    assert told(lab) == [(name, None, int(name[:20]), "producer snapshot with a wrong CRC")]
    states_before = lab.path / lab.files(".snapshot")[0]
    (lab.path / name).write_bytes(states_before.read_bytes())
    ((where, _, _, what),) = told(lab)
    assert where == name
    assert what.startswith("producer 7 has epoch 0 and sequence")
    (lab.path / name).write_bytes(ProducerStateManager().to_snapshot())
    assert told(lab) == []  # written so much later that the producer had expired
    os.utime(lab.path / name, ns=((NOW + 1000) * 10**6, (NOW + 1000) * 10**6))
    assert told(lab)[0][3].startswith("producer 7 is missing, whose last batch is at offset 59")


def test_a_snapshot_beyond_the_end(lab: Lab) -> None:
    (lab.path / f"{10**6:020d}.snapshot").write_bytes((lab.path / lab.files(".snapshot")[0]).read_bytes())
    assert "beyond the end of the log" in told(lab)[0][3]


def test_epochs_must_agree_with_the_batches(lab: Lab) -> None:
    path = lab.path / file_names.LEADER_EPOCHS
    path.write_bytes(checkpoint_files.encode_epochs([(0, 0), (3, 50)]))
    ((_, _, offset, what),) = told(lab)
    assert (offset, what) == (50, "a batch of leader epoch 0 where leader-epoch-checkpoint has 3")
    path.write_bytes(b"0\n2\n0 0\n")
    assert told(lab)[0][3] == "1 entries where 2 were announced"
    path.write_bytes(checkpoint_files.encode_epochs([(0, 0)]))

    def newer(data: bytearray) -> None:
        position = 0
        while position < len(data):
            patch_leader_epoch(data, position, 4)
            position += parse_header(data, position).size

    name = edit(lab, ".log", -1, newer)
    base = int(name[:20])
    assert told(lab) == [(name, 0, base, "a batch of leader epoch 4 where leader-epoch-checkpoint has 0")]
    # After a crash the file may not know it yet: recovery learns it from the log.
    assert told(lab, CheckpointedState(recovery_point=base, clean=False)) == []


def test_checkpoints_must_lie_within_the_log(lab: Lab) -> None:
    found = [
        one.what
        for one in check(lab, CheckpointedState(recovery_point=10_000, log_start_offset=20_000, cleaned_to=30_000))
    ]
    assert [what.split(",")[0] for what in found] == [
        "recovery-point-offset-checkpoint has 10000",
        "log-start-offset-checkpoint has 20000",
        "cleaner-offset-checkpoint has 30000",
    ]


def test_segments_must_not_overlap(lab: Lab) -> None:
    first, second = lab.files(".log")[:2]
    (lab.path / second).rename(lab.path / f"{int(second[:20]) - 2:020d}.log")
    whats = [what for _, _, _, what in told(lab)]
    assert f"begins at offset {int(second[:20]) - 2}, but the segment before it ends at {int(second[:20])}" in whats
    assert first == "00000000000000000000.log"


def test_leftovers_are_noted(lab: Lab) -> None:
    for name in ("00000000000000000000.log.deleted", "leader-epoch-checkpoint.tmp", "00000000000000000000.log.swap"):
        (lab.path / name).touch()
    (lab.path / "00000000000000000001.index").touch()
    found = check(lab)
    assert [one.is_problem for one in found] == [False] * 4
    assert {one.what for one in found} == {
        "left over; the next start removes it",
        "of a compaction that was not finished; the next start does",
        "belongs to no segment; the next start removes it",
    }


def test_the_topic_id(lab: Lab) -> None:
    (lab.path / file_names.PARTITION_METADATA).write_text("version: 0\ntopic_id: x")
    assert [(one.what, one.is_problem) for one in check(lab)] == [
        ("damaged: nobody can tell whose directory this is", True)
    ]
    (lab.path / file_names.PARTITION_METADATA).unlink()
    assert [one.is_problem for one in check(lab)] == [False]


def test_the_moving_end_of_a_running_broker_is_no_problem(lab: Lab) -> None:
    edit(lab, ".log", -1, lambda data: data.__delitem__(slice(-10, None)))
    edit(lab, ".index", -1, lambda data: data.extend(pack(">ii", 10_000, 1 << 20)))
    (lab.path / f"{10**6:020d}.snapshot").write_bytes((lab.path / lab.files(".snapshot")[0]).read_bytes())
    assert len(check(lab)) >= 3
    assert check(lab, CheckpointedState(moving=True, recovery_point=10**6)) == []


# What the next start would do.


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", ["tail", "middle", "index", "snapshot", "epochs", "swap"])
def test_the_rehearsal_says_what_recovery_does_and_changes_nothing(lab: Lab, damage: str, clean: bool) -> None:
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
    lines = dry_run_recovery(lab.disk, str(lab.path), TP, 0, 0, clean, NOW, Random(1))
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in lab.path.iterdir()} == before
    assert lines == lab.open(clean=clean).repairs
    # A clean stop is trusted; after another one, no snapshot above the recovery point is.
    assert lines or (damage, clean) in (("middle", True), ("snapshot", False))


def test_a_disk_on_which_nothing_happens(tmp_path: Path) -> None:
    path = f"{tmp_path}/a"
    Path(path).write_bytes(b"0123456789")
    disk = OverlayDisk(RealDisk())
    file = disk.open(path)
    assert file.appendv([b"ab", b"cd"]) == 4
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


# Transactions.


@pytest.fixture
def transacted(tmp_path: Path) -> Lab:
    """A closed log of several segments, in which producers 1 to 3 have ended transactions one way and the other."""
    lab = Lab(tmp_path, segment_bytes=3000)
    log = lab.open()
    for n in range(24):
        for producer in (1, 2, 3):
            data = batch(
                1, 60, NOW + n, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=n, base_sequence=0
            )
            append(log, data)
        for producer in (2, 1, 3):
            marker = EndMarker(committed=(n + producer) % 3 == 0, coordinator_epoch=4)
            data = build_end_marker(marker, producer, n, NOW + n)
            log.append_markers([(data, parse_header(data), marker)], 0, NOW)
    assert lab.close(log)
    assert len(lab.files(".txnindex")) > 2
    return lab


def test_a_log_with_transactions_is_sound(transacted: Lab) -> None:
    assert told(transacted) == []
    assert told(transacted, CheckpointedState(clean=False)) == []


def test_every_aborted_transaction_has_its_entry(transacted: Lab) -> None:
    file = transacted.path / transacted.files(".txnindex")[1]
    entries = file.read_bytes()
    _, producer_id, first, last, _ = ABORTED_ENTRY.unpack_from(entries)
    file.write_bytes(entries[ABORTED_ENTRY.size :])
    missing = f"has nothing of what producer {producer_id} aborted at offset {last}"
    assert told(transacted) == [(file.name, 0, first, missing)]
    # After an unclean stop the next start makes what was not synced anew.
    assert told(transacted, CheckpointedState(clean=False)) == []
    assert told(transacted, CheckpointedState(recovery_point=10_000, clean=False))[0] == (file.name, 0, first, missing)
    file.unlink()
    assert len(told(transacted)) == len(entries) // ABORTED_ENTRY.size


@pytest.mark.parametrize(
    ("field", "change", "expected"),
    [
        (1, 1, "producer {0} aborted no transaction there"),
        (2, -1, "has offset {0}, but the transaction begins at {1}"),
    ],
)
def test_every_entry_is_of_an_aborted_transaction(transacted: Lab, field: int, change: int, expected: str) -> None:
    file = transacted.path / transacted.files(".txnindex")[0]
    entries = file.read_bytes()
    values = list(ABORTED_ENTRY.unpack_from(entries))
    right = values[field]
    values[field] += change
    file.write_bytes(ABORTED_ENTRY.pack(*values) + entries[ABORTED_ENTRY.size :])
    assert told(transacted) == [(file.name, 0, values[3], expected.format(values[field], right))]


def test_entries_beyond_the_log_are_told(transacted: Lab) -> None:
    file = transacted.path / transacted.files(".txnindex")[-1]
    entries = file.read_bytes()
    file.write_bytes(entries + ABORTED_ENTRY.pack(0, 1, 9_000, 9_001, 9_002))
    assert told(transacted) == [(file.name, len(entries), 9_001, "has an offset beyond the last batch")]


def test_a_snapshot_knows_which_transactions_are_open(transacted: Lab) -> None:
    log = transacted.open(clean=True)
    begins = log.log_end_offset
    for producer, epoch in ((1, 24), (2, 24)):
        append(log, batch(1, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=epoch, base_sequence=0))
    assert transacted.close(log)
    assert told(transacted) == []

    path = transacted.path / transacted.files(".snapshot")[-1]
    offset = file_names.parse_segment_file(path.name)[0]  # type: ignore[index]
    entries, _ = producer_entries(path.read_bytes())
    assert [(entry[0], entry[-1]) for entry in sorted(entries)] == [(1, begins), (2, begins + 1), (3, -1)]
    wrong = {1: -1, 2: begins, 3: begins}
    path.write_bytes(encode_snapshot([(*entry[:-1], wrong[entry[0]]) for entry in entries]))
    assert sorted(told(transacted)) == [
        (path.name, None, offset, f"producer 1 has no transaction open, in the log it has one from offset {begins}"),
        (
            path.name,
            None,
            offset,
            f"producer 2 has a transaction open from offset {begins}, in the log it has one from offset {begins + 1}",
        ),
        (path.name, None, offset, f"producer 3 has a transaction open from offset {begins}, in the log there is none"),
    ]
