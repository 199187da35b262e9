"""Lost transaction indexes: a start rebuilds them, since without them aborted records would count as committed.

A log whose transactions were all committed has no such file, so what is missing is known from other files.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from kbroker.storage.file_names import SNAPSHOT, TXN_INDEX
from kbroker.storage.log.log import Log
from kbroker.storage.log.transaction_index import TRANSACTION_ENTRY_BYTES, AbortedTransaction
from protocol.records.batch import TRANSACTIONAL, build_batch
from protocol.records.control import EndTransactionMarker, build_end_marker
from tests.unit.support.compaction import COMPACT, DAY, compact
from tests.unit.support.log_lab import NOW, Lab, append, batch, content

Damage = Callable[[Lab], None]

# The segments have two, three and one aborted transaction; between them there are committed ones.
ABORTED = (2, 3, 1)


def transact(log: Log, producer_id: int, number: int, committed: bool) -> None:
    fields = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": number}
    append(
        log, build_batch([(NOW, b"k%d" % producer_id, b"value %d" % number, ())], attributes=TRANSACTIONAL, **fields)
    )
    append(log, build_end_marker(EndTransactionMarker(committed, 0), producer_id, 0, NOW))


def write(lab: Lab) -> Log:
    log = lab.open()
    number = 0
    for segment, aborted in enumerate(ABORTED):
        if segment:
            log.roll(NOW)
        for _ in range(aborted):
            transact(log, 1, number, committed=True)
            transact(log, 2, number, committed=False)
            number += 1
        append(log, batch(40, 30))
    return log


def aborted(log: Log) -> list[AbortedTransaction]:
    found: list[AbortedTransaction] = []
    for segment in log.segments:
        segment.collect_aborted(0, 1 << 62, True, found)
    return found


def lose(*suffixes: str, segments: slice = slice(None)) -> Damage:
    def damage(lab: Lab) -> None:
        for suffix in suffixes:
            for name in lab.files(suffix)[segments]:
                (lab.path / name).unlink()

    return damage


def cut(size: int, segments: slice = slice(None)) -> Damage:
    def damage(lab: Lab) -> None:
        for name in lab.files(TXN_INDEX)[segments]:
            path = lab.path / name
            path.write_bytes(path.read_bytes()[:size])

    return damage


DAMAGES: dict[str, Damage] = {
    "all index files gone": lose(".index", ".timeindex", TXN_INDEX),
    "all index files and snapshots gone": lose(".index", ".timeindex", TXN_INDEX, SNAPSHOT),
    "gone": lose(TXN_INDEX),
    "the first gone": lose(TXN_INDEX, segments=slice(1)),
    "the second gone": lose(TXN_INDEX, segments=slice(1, 2)),
    "the last gone": lose(TXN_INDEX, segments=slice(2, 3)),
    "empty": cut(0),
    "cut between entries": cut(TRANSACTION_ENTRY_BYTES, segments=slice(0, 2)),
    "cut in an entry": cut(TRANSACTION_ENTRY_BYTES - 1),
}


def stop(lab: Lab, log: Log, clean: bool) -> tuple[int, Mapping[int, int]]:
    """Stop, or write a checkpoint and be killed. Returns the recovery point, and the entries in the checkpoint file."""
    if clean:
        assert lab.close(log)
    else:
        log.durability.checkpoint()
    return log.recovery_point, log.transaction_index_entries()


@pytest.mark.parametrize("is_known", [True, False], ids=["checkpoint", "checkpoint lost"])
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_they_are_rebuilt(tmp_path: Path, damage: Damage, clean: bool, is_known: bool) -> None:
    lab = Lab(tmp_path, index_interval_bytes=500)
    log = write(lab)
    expected = aborted(log)
    assert len(expected) == sum(ABORTED)
    recovery_point, entries = stop(lab, log, clean)
    assert list(entries.values()) == list(ABORTED)
    before = {name: (lab.path / name).read_bytes() for name in lab.files(TXN_INDEX)}
    damage(lab)
    # Without a snapshot all of the log is read anyway.
    is_noticed = is_known or bool(lab.files(SNAPSHOT))
    log = lab.open(recovery_point, clean, transaction_indexes=entries if is_known else None)
    assert aborted(log) == expected
    assert log.last_aborted_offset == expected[-1].last_offset
    assert any(TXN_INDEX in repair for repair in log.repairs) == is_noticed
    assert lab.close(log)
    assert {name: (lab.path / name).read_bytes() for name in lab.files(TXN_INDEX)} == before
    again = lab.open(log.recovery_point, clean=True, transaction_indexes=log.transaction_index_entries())
    assert again.repairs == []
    assert aborted(again) == expected


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_log_that_lost_its_offset_indexes_too_needs_no_checkpoint(tmp_path: Path, clean: bool) -> None:
    """A former version has not written it. The last segment may have no index files yet, so there it is trusted."""
    lab = Lab(tmp_path, index_interval_bytes=500)
    log = write(lab)
    expected = aborted(log)
    recovery_point, _ = stop(lab, log, clean)
    lose(".index", ".timeindex", TXN_INDEX, segments=slice(2))(lab)
    assert aborted(lab.open(recovery_point, clean)) == expected


@pytest.mark.parametrize("known", [{}, None], ids=["nothing", "unknown"])
def test_a_log_without_aborted_transactions_gets_no_file(tmp_path: Path, known: Mapping[int, int] | None) -> None:
    lab = Lab(tmp_path, index_interval_bytes=500)
    log = lab.open()
    for number in range(5):
        transact(log, 1, number, committed=True)
        log.roll(NOW)
    assert lab.close(log)
    log = lab.open(log.recovery_point, clean=True, transaction_indexes=known)
    assert (log.repairs, aborted(log), lab.files(TXN_INDEX)) == ([], [], [])


def test_a_checkpoint_of_segments_that_are_gone_or_were_compacted_since_repairs_nothing(tmp_path: Path) -> None:
    lab = Lab(tmp_path, index_interval_bytes=500)
    log = write(lab)
    assert lab.close(log)
    stale = {0: 9, 1: 5, 1 << 40: 3}
    log = lab.open(log.recovery_point, clean=True, transaction_indexes=stale)
    assert log.repairs == []


@pytest.mark.parametrize("known", [True, False], ids=["all known", "nothing known"])
def test_a_start_reads_no_batch_for_indexes_that_are_whole(tmp_path: Path, known: bool) -> None:
    lab = Lab(tmp_path, index_interval_bytes=500)
    log = write(lab)
    entries = log.transaction_index_entries() if known else MappingProxyType({})
    assert lab.close(log)
    first = log.segments[0]
    (lab.path / first.path().rpartition("/")[2]).write_bytes(bytes(first.size))
    log = lab.open(log.recovery_point, clean=True, transaction_indexes=entries)
    assert len(aborted(log)) == sum(ABORTED)
    # The offset index alone is compared with the batches after its last entry.
    assert not any(TXN_INDEX in repair for repair in log.repairs)


@pytest.mark.parametrize(
    "damage", [lose(TXN_INDEX), cut(0), cut(TRANSACTION_ENTRY_BYTES)], ids=["gone", "empty", "cut"]
)
def test_compaction_refuses_a_segment_whose_index_was_lost_meanwhile(tmp_path: Path, damage: Damage) -> None:
    """It would keep the records of aborted transactions forever."""
    lab = Lab(tmp_path, **{**COMPACT, "index_interval_bytes": 500})
    log = write(lab)
    log.roll(NOW)
    damage(lab)
    before = content(log)
    with pytest.raises(Exception, match=r"expected|has lost|No such file"):
        compact(log, NOW + DAY)
    assert content(log) == before


def test_compaction_waits_for_the_transaction_index(tmp_path: Path) -> None:
    """A sync may have passed the end of the segment before its index is written."""
    lab = Lab(tmp_path, **{**COMPACT, "index_interval_bytes": 500})
    lab.background.hold = True
    log = write(lab)
    log.roll(NOW)
    log.complete_flush(log.durability.flush_blocking(log.log_end_offset))
    assert not compact(log, NOW + DAY)
    lab.background.run()
    assert compact(log, NOW + DAY)
