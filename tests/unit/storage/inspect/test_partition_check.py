"""Checks of a partition's directory: each kind of damage and contradiction is reported where it is."""

import os
from pathlib import Path
from struct import pack

import pytest

from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.inspect.index_checks import TRANSACTION_ENTRY, decode_producer_entries
from kbroker.storage.inspect.partition_check import CheckpointedState, LogFinding, PartitionCheck
from kbroker.storage.producers.producer_state_manager import ProducerStateManager
from kbroker.storage.producers.producer_table import ENTRY, FrozenProducers
from protocol.records.batch import TRANSACTIONAL, parse_header
from protocol.records.control import EndTransactionMarker, build_end_marker
from tests.unit.support.batch_fields import patch_leader_epoch
from tests.unit.support.damaged_log import edit, write_sound_log
from tests.unit.support.log_lab import NOW, Lab, append, batch

CLEAN = CheckpointedState()


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return write_sound_log(tmp_path)


def check(lab: Lab, state: CheckpointedState = CLEAN) -> list[LogFinding]:
    return list(PartitionCheck(lab.disk, str(lab.path), state).findings())


def findings(lab: Lab, state: CheckpointedState = CLEAN) -> list[tuple[str, int | None, int | None, str]]:
    return [
        (finding.path.rpartition("/")[2], finding.position, finding.offset, finding.what)
        for finding in check(lab, state)
    ]


def test_a_sound_log_has_no_findings(lab: Lab) -> None:
    assert check(lab) == []
    read: list[int] = []
    check_all = PartitionCheck(lab.disk, str(lab.path), CheckpointedState(is_clean=False), read.append)
    assert list(check_all.findings()) == []
    totals = check_all.totals
    size = sum((lab.path / name).stat().st_size for name in lab.files(".log"))
    assert (totals.first_offset, totals.batches, totals.bytes, totals.bytes_to_recover) == (0, 90, size, size)
    assert totals.end_offset == lab.open(clean=True).log_end_offset
    assert sum(read) == size


def test_a_damaged_batch_is_reported_with_its_position(lab: Lab) -> None:
    name = edit(lab, ".log", 0, lambda data: data.__setitem__(400, data[400] ^ 1))
    (finding,) = check(lab)
    assert finding.path.endswith(name)
    assert (finding.what, finding.is_problem) == ("a batch: its CRC is wrong", True)
    assert finding.position is not None
    header = parse_header((lab.path / name).read_bytes(), finding.position)
    assert (header.base_offset, finding.position < 400 < finding.position + header.size) == (finding.offset, True)


def test_offset_index_entries_must_point_to_their_batches(lab: Lab) -> None:
    def move(data: bytearray) -> None:
        first, position, second = data[0:4], int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
        data[0:8] = first + pack(">i", position + 1)
        data[8:12] = pack(">i", second + 1)

    name = edit(lab, ".index", 1, move)
    (_, at, _, first), (_, after, _, second) = findings(lab)
    assert (at, after) == (0, 8)
    assert "where no batch begins" in first
    assert "ends with offset" in second
    edit(lab, ".index", 1, lambda data: data.extend(pack(">ii", 10_000, 1 << 20)))
    assert f"points to byte {1 << 20} of" in findings(lab)[-1][3]
    assert findings(lab)[-1][0] == name


def test_time_index_entries_must_have_the_largest_timestamps(lab: Lab) -> None:
    def later(data: bytearray) -> None:
        data[7] += 1

    name = edit(lab, ".timeindex", 1, later)
    ((where, at, _, message),) = findings(lab)
    assert (where, at) == (name, 0)
    assert message.startswith("has timestamp")
    edit(lab, ".timeindex", 0, lambda data: data.__delitem__(slice(-12, None)))
    assert "ends with timestamp" in findings(lab)[0][3]


def test_missing_indexes_of_closed_segments_are_reported(lab: Lab) -> None:
    for name in lab.files("index"):
        (lab.path / name).unlink()
    closed = len(lab.files(".log")) - 1
    assert [finding[3] for finding in findings(lab)] == ["missing"] * (2 * closed)
    # Above the recovery point the next start rebuilds them.
    assert findings(lab, CheckpointedState(is_clean=False)) == []


def test_snapshots_must_agree_with_the_batches(lab: Lab) -> None:
    name = edit(lab, ".snapshot", -1, lambda data: data.__setitem__(20, 1))
    assert findings(lab) == [(name, None, int(name[:20]), "producer snapshot with a wrong CRC")]
    states_before = lab.path / lab.files(".snapshot")[0]
    (lab.path / name).write_bytes(states_before.read_bytes())
    ((where, _, _, message),) = findings(lab)
    assert where == name
    assert message.startswith("producer 7 has epoch 0 and sequence")
    (lab.path / name).write_bytes(ProducerStateManager().to_snapshot()())
    assert findings(lab) == []  # It was written so late that the producer had expired.
    os.utime(lab.path / name, ns=((NOW + 1000) * 10**6, (NOW + 1000) * 10**6))
    assert findings(lab)[0][3].startswith("producer 7 is missing, whose last batch is at offset 59")


def test_a_snapshot_beyond_the_end_is_reported(lab: Lab) -> None:
    (lab.path / f"{10**6:020d}.snapshot").write_bytes((lab.path / lab.files(".snapshot")[0]).read_bytes())
    assert "beyond the end of the log" in findings(lab)[0][3]


def test_epochs_must_agree_with_the_batches(lab: Lab) -> None:
    path = lab.path / file_names.LEADER_EPOCHS
    path.write_bytes(checkpoint_files.encode_epochs([(0, 0), (3, 50)]))
    ((_, _, offset, message),) = findings(lab)
    assert (offset, message) == (50, "a batch of leader epoch 0 where leader-epoch-checkpoint has 3")
    path.write_bytes(b"0\n2\n0 0\n")
    assert findings(lab)[0][3] == "1 entries where 2 are expected"
    path.write_bytes(checkpoint_files.encode_epochs([(0, 0)]))

    def newer(data: bytearray) -> None:
        position = 0
        while position < len(data):
            patch_leader_epoch(data, position, 4)
            position += parse_header(data, position).size

    name = edit(lab, ".log", -1, newer)
    base = int(name[:20])
    assert findings(lab) == [(name, 0, base, "a batch of leader epoch 4 where leader-epoch-checkpoint has 0")]
    # After a crash the file may lack it: recovery completes it from the log.
    assert findings(lab, CheckpointedState(recovery_point=base, is_clean=False)) == []


def test_checkpoints_must_lie_within_the_log(lab: Lab) -> None:
    messages = [
        finding.what
        for finding in check(lab, CheckpointedState(recovery_point=10_000, log_start_offset=20_000, cleaned_to=30_000))
    ]
    assert [message.split(",")[0] for message in messages] == [
        "recovery-point-offset-checkpoint has 10000",
        "log-start-offset-checkpoint has 20000",
        "cleaner-offset-checkpoint has 30000",
    ]


def test_segments_must_not_overlap(lab: Lab) -> None:
    first, second = lab.files(".log")[:2]
    (lab.path / second).rename(lab.path / f"{int(second[:20]) - 2:020d}.log")
    messages = [message for _, _, _, message in findings(lab)]
    assert f"begins at offset {int(second[:20]) - 2}, but the segment before it ends at {int(second[:20])}" in messages
    assert first == "00000000000000000000.log"


def test_leftovers_are_reported_but_no_problem(lab: Lab) -> None:
    for name in ("00000000000000000000.log.deleted", "leader-epoch-checkpoint.tmp", "00000000000000000000.log.swap"):
        (lab.path / name).touch()
    (lab.path / "00000000000000000001.index").touch()
    reported = check(lab)
    assert [finding.is_problem for finding in reported] == [False] * 4
    assert {finding.what for finding in reported} == {
        "a leftover; the next start removes it",
        "of an unfinished compaction; the next start finishes it",
        "belongs to no segment; the next start removes it",
    }


def test_a_damaged_topic_id_is_a_problem_and_a_missing_one_is_not(lab: Lab) -> None:
    (lab.path / file_names.PARTITION_METADATA).write_text("version: 0\ntopic_id: x")
    assert [(finding.what, finding.is_problem) for finding in check(lab)] == [
        ("damaged: the topic of this directory is not known", True)
    ]
    (lab.path / file_names.PARTITION_METADATA).unlink()
    assert [finding.is_problem for finding in check(lab)] == [False]


def test_the_end_of_a_running_brokers_log_is_not_checked(lab: Lab) -> None:
    edit(lab, ".log", -1, lambda data: data.__delitem__(slice(-10, None)))
    edit(lab, ".index", -1, lambda data: data.extend(pack(">ii", 10_000, 1 << 20)))
    (lab.path / f"{10**6:020d}.snapshot").write_bytes((lab.path / lab.files(".snapshot")[0]).read_bytes())
    assert len(check(lab)) >= 3
    assert check(lab, CheckpointedState(is_running=True, recovery_point=10**6)) == []


# Transactions.


@pytest.fixture
def transacted(tmp_path: Path) -> Lab:
    """A closed log of several segments, in which producers 1 to 3 have committed and aborted transactions."""
    lab = Lab(tmp_path, segment_bytes=3000)
    log = lab.open()
    for n in range(24):
        for producer in (1, 2, 3):
            data = batch(
                1, 60, NOW + n, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=n, base_sequence=0
            )
            append(log, data)
        for producer in (2, 1, 3):
            marker = EndTransactionMarker(committed=(n + producer) % 3 == 0, coordinator_epoch=4)
            data = build_end_marker(marker, producer, n, NOW + n)
            log.append_batches([(data, parse_header(data), marker)], 0, NOW)
    assert lab.close(log)
    assert len(lab.files(".txnindex")) > 2
    return lab


def test_a_sound_log_with_transactions_has_no_findings(transacted: Lab) -> None:
    assert findings(transacted) == []
    assert findings(transacted, CheckpointedState(is_clean=False)) == []


def test_an_aborted_transaction_without_an_index_entry_is_reported(transacted: Lab) -> None:
    file = transacted.path / transacted.files(".txnindex")[1]
    entries = file.read_bytes()
    _, producer_id, first, last, _ = TRANSACTION_ENTRY.unpack_from(entries)
    file.write_bytes(entries[TRANSACTION_ENTRY.size :])
    missing = f"lacks the transaction that producer {producer_id} aborted at offset {last}"
    assert findings(transacted) == [(file.name, 0, first, missing)]
    # After an unclean shutdown the next start rebuilds what was not synced.
    assert findings(transacted, CheckpointedState(is_clean=False)) == []
    assert findings(transacted, CheckpointedState(recovery_point=10_000, is_clean=False))[0] == (
        file.name,
        0,
        first,
        missing,
    )
    file.unlink()
    assert len(findings(transacted)) == len(entries) // TRANSACTION_ENTRY.size


@pytest.mark.parametrize(
    ("field", "change", "expected"),
    [(1, 1, "producer {0} aborted no transaction there"), (2, -1, "has offset {0}, but the transaction begins at {1}")],
)
def test_an_index_entry_must_fit_its_aborted_transaction(
    transacted: Lab, field: int, change: int, expected: str
) -> None:
    file = transacted.path / transacted.files(".txnindex")[0]
    entries = file.read_bytes()
    values = list(TRANSACTION_ENTRY.unpack_from(entries))
    right = values[field]
    values[field] += change
    file.write_bytes(TRANSACTION_ENTRY.pack(*values) + entries[TRANSACTION_ENTRY.size :])
    assert findings(transacted) == [(file.name, 0, values[3], expected.format(values[field], right))]


def test_index_entries_beyond_the_log_are_reported(transacted: Lab) -> None:
    file = transacted.path / transacted.files(".txnindex")[-1]
    entries = file.read_bytes()
    file.write_bytes(entries + TRANSACTION_ENTRY.pack(0, 1, 9_000, 9_001, 9_002))
    assert findings(transacted) == [(file.name, len(entries), 9_001, "has an offset beyond the last batch")]


def test_a_snapshot_must_have_the_open_transactions(transacted: Lab) -> None:
    log = transacted.open(clean=True)
    begins = log.log_end_offset
    for producer, epoch in ((1, 24), (2, 24)):
        append(log, batch(1, attributes=TRANSACTIONAL, producer_id=producer, producer_epoch=epoch, base_sequence=0))
    assert transacted.close(log)
    assert findings(transacted) == []

    path = transacted.path / transacted.files(".snapshot")[-1]
    offset = file_names.parse_segment_file(path.name)[0]  # type: ignore[index]
    entries, _ = decode_producer_entries(path.read_bytes())
    assert [(entry[0], entry[-1]) for entry in sorted(entries)] == [(1, begins), (2, begins + 1), (3, -1)]
    wrong = {1: -1, 2: begins, 3: begins}
    rows = [ENTRY.pack(*entry[:-1], wrong[entry.producer_id]) for entry in entries]
    path.write_bytes(FrozenProducers(rows, len(rows)).encode())
    assert sorted(findings(transacted)) == [
        (path.name, None, offset, f"producer 1 has no transaction open, in the log it has one from offset {begins}"),
        (
            path.name,
            None,
            offset,
            f"producer 2 has a transaction open from offset {begins}, in the log it has one from offset {begins + 1}",
        ),
        (path.name, None, offset, f"producer 3 has a transaction open from offset {begins}, in the log there is none"),
    ]
