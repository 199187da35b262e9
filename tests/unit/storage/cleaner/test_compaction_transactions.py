"""Compaction of transactions.

Aborted records are removed, and so is a marker when nothing of its transaction is left and delete.retention.ms has
passed. A consumer of committed records reads the same before and after.
"""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from kbroker.storage import file_names
from kbroker.storage.log.log import Log
from kbroker.storage.log.transaction_index import AbortedTransaction
from protocol.records.batch import DELETE_HORIZON, TRANSACTIONAL, build_batch, iter_batch_records, iter_headers
from protocol.records.control import EndTransactionMarker, build_end_marker, find_end_marker
from tests.sampling import third_of
from tests.unit.support.compaction import COMPACT, DAY, compact
from tests.unit.support.crashing_disk import Crash, CrashingDisk
from tests.unit.support.log_lab import NOW, Lab, append, content

Values = dict[bytes, tuple[int, bytes | None]]


def aborted_of(log: Log, start: int, end: int) -> list[AbortedTransaction]:
    """Return the aborted transactions in the response to a fetch of these offsets."""
    aborted: list[AbortedTransaction] = []
    for segment in log.segments:
        if (segment.end_offset is None or segment.end_offset > start) and segment.collect_aborted(
            start, end, True, aborted
        ):
            break
    return aborted


def committed(log: Log, start: int | None = None) -> list[tuple[int, bytes | None, bytes | None]]:
    """Return (offset, key, value) of the records that a client with read_committed returns.

    As all clients do, it skips the batches of a producer from the first offset of an aborted transaction to its marker.
    """
    start = log.log_start_offset if start is None else start
    upper = stable(log)
    ahead = sorted(aborted_of(log, start, upper), key=lambda transaction: transaction.first_offset)
    aborting: set[int] = set()
    records = []
    data = content(log)
    for position, header in iter_headers(data):
        if header.last_offset < start or header.base_offset >= upper:
            continue
        while ahead and ahead[0].first_offset <= header.last_offset:
            aborting.add(ahead.pop(0).producer_id)
        batch = data[position : position + header.size]
        if header.is_control:
            marker = find_end_marker(batch)
            if marker is not None and not marker.committed:
                aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            records += [
                (header.base_offset + record.offset_delta, record.key, record.value)
                for record in iter_batch_records(batch, header)
            ]
    return [record for record in records if record[0] >= start]


def latest(committed_records: list[tuple[int, bytes | None, bytes | None]]) -> Values:
    return {key: (offset, value) for offset, key, value in committed_records if key is not None}


def living(values: Values) -> Values:
    return {key: record for key, record in values.items() if record[1] is not None}


@dataclass
class Producer:
    producer_id: int
    epoch: int = 0
    sequence: int = 0
    open: bool = False

    def write(self, log: Log, records: list[tuple[bytes, bytes | None]], transactional: bool = True) -> None:
        append(
            log,
            build_batch(
                [(NOW, key, value, ()) for key, value in records],
                attributes=TRANSACTIONAL if transactional else 0,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self.sequence,
            ),
        )
        self.sequence += len(records)
        self.open = self.open or transactional

    def end(self, log: Log, committed: bool, bump: bool = False) -> None:
        if bump:
            self.epoch, self.sequence = self.epoch + 1, 0
        append(log, build_end_marker(EndTransactionMarker(committed, 0), self.producer_id, self.epoch, NOW))
        self.open = False


def stable(log: Log) -> int:
    """Return the last stable offset when the high watermark is the log end offset."""
    log.update_high_watermark(log.log_end_offset)
    return min(log.producers.transactions.first_unstable_offset, log.log_end_offset)


def markers(log: Log) -> list[int]:
    return [header.base_offset for _, header in iter_headers(content(log)) if header.is_control]


def roll(log: Log) -> None:
    """Close and sync the active segment. Its last record has a key of its own."""
    append(log, build_batch([(NOW, b"end", b"", ())]))
    log.roll(NOW)
    log.complete_flush(log.durability.flush_blocking(log.log_end_offset))


def test_aborted_records_are_removed_and_replace_no_others(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    producer = Producer(1)
    producer.write(log, [(b"k", b"committed")])
    producer.end(log, committed=True)
    producer.write(log, [(b"k", b"aborted"), (b"other", b"aborted")])
    producer.end(log, committed=False)
    producer.write(log, [(b"x", b"last")])
    producer.end(log, committed=True)
    roll(log)
    assert compact(log, limit=stable(log))
    assert latest(committed(log)) == {b"k": (0, b"committed"), b"x": (5, b"last"), b"end": (7, b"")}
    assert b"aborted" not in content(log)
    # The compaction that removes the records keeps the marker: a consumer may be in the middle of the transaction.
    assert markers(log) == [1, 4, 6]
    assert [transaction.last_offset for transaction in aborted_of(log, 0, 8)] == [4]


def test_a_marker_without_records_is_kept_for_delete_retention(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **COMPACT)
    log = lab.open()
    first, second = Producer(1), Producer(2)
    first.write(log, [(b"k", b"1")])
    first.end(log, committed=False)
    second.write(log, [(b"k", b"2")])
    second.end(log, committed=True)
    for producer in (first, second):
        producer.write(log, [(b"k", b"3")])
        producer.end(log, committed=True)
    # One after the other the records are removed, the markers get a delete horizon, the markers are removed.
    seen = []
    for now_ms in (NOW, NOW, NOW + DAY - 1, NOW + DAY):
        roll(log)
        assert compact(log, now_ms, limit=stable(log))
        seen.append(markers(log))
    assert seen == [[1, 3, 5, 7], [1, 3, 5, 7], [1, 3, 5, 7], [5, 7]]
    assert aborted_of(log, 0, log.log_end_offset) == []
    assert lab.files(file_names.TXN_INDEX) == [] or all(
        not (lab.path / name).stat().st_size for name in lab.files(file_names.TXN_INDEX)
    )


def test_a_marker_in_a_later_segment_aborts_records_in_an_earlier_one(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    producer = Producer(1)
    append(log, build_batch([(NOW, b"k", b"kept", ())]))
    producer.write(log, [(b"k", b"aborted")])
    roll(log)
    assert not compact(log, limit=stable(log)), "the transaction is still open"
    producer.end(log, committed=False)
    assert compact(log, limit=stable(log))
    assert latest(committed(log))[b"k"] == (0, b"kept")
    assert b"aborted" not in content(log)
    (entry,) = aborted_of(log, 0, log.log_end_offset)
    assert (entry.first_offset, entry.last_offset) == (1, 3)


def test_the_last_marker_of_a_producer_stays_to_fence_it(tmp_path: Path) -> None:
    lab = Lab(tmp_path, **COMPACT)
    log = lab.open()
    producer = Producer(1, epoch=4)
    producer.write(log, [(b"k", b"1")])
    producer.end(log, committed=False, bump=True)
    for now_ms in (NOW, NOW, NOW + DAY, NOW + 2 * DAY):
        roll(log)
        assert compact(log, now_ms, limit=stable(log))
    for path in lab.path.glob("*.snapshot"):
        path.unlink()
    log = lab.open(0)
    assert [(other.producer_id, other.producer_epoch) for other in log.producers.active()] in ([], [(1, 5)])
    headers = [header for _, header in iter_headers(content(log)) if header.is_control]
    assert [(header.producer_epoch, header.count) for header in headers] == [(5, 0)]


@dataclass
class Workload:
    """Random transactions of several producers."""

    random: Random
    producers: list[Producer] = field(default_factory=lambda: [Producer(number) for number in range(4)])

    def run(self, log: Log, steps: int) -> None:
        random = self.random
        for _ in range(steps):
            producer = random.choice(self.producers)
            if producer.open and random.random() < 0.35:
                producer.end(log, random.random() < 0.6, bump=random.random() < 0.3)
            elif random.random() < 0.75:
                producer.write(log, self.records(), transactional=True)
            else:
                append(log, build_batch([(NOW, key, value, ()) for key, value in self.records()]))
            if random.random() < 0.03:
                log.roll(NOW)

    def records(self) -> list[tuple[bytes, bytes | None]]:
        random = self.random
        return [
            (b"key-%d" % random.randrange(12), None if random.random() < 0.15 else random.randbytes(12))
            for _ in range(random.randrange(1, 4))
        ]

    def end_all(self, log: Log) -> None:
        for producer in self.producers:
            if producer.open:
                producer.end(log, self.random.random() < 0.5)


@pytest.mark.parametrize("seed", third_of(range(12)))
def test_consumers_of_committed_records_read_the_same(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    lab = Lab(tmp_path, CrashingDisk(), **{**COMPACT, "segment_bytes": random.choice([800, 2500])})
    log = lab.open()
    workload = Workload(random)
    now_ms = NOW
    for round_ in range(6):
        workload.run(log, 80)
        if round_ == 5:
            workload.end_all(log)
        log.roll(NOW)
        log.complete_flush(log.durability.flush_blocking(log.log_end_offset))
        limit = stable(log)
        before = committed(log)
        now_ms += random.choice([0, DAY // 2, DAY])
        compact(log, now_ms, limit=limit, map_bytes=random.choice([2_000, 1 << 20]))
        after = committed(log)
        assert set(after) <= set(before)
        assert living(latest(after)) == living(latest(before)), "the last committed value of each key"
        for start in random.sample(range(log.log_start_offset, limit), min(5, limit)):
            assert committed(log, start) == [record for record in after if record[0] >= start], "from any start offset"
        states = sorted(log.producers.active())
        if random.random() < 0.5:
            assert lab.close(log)
            log = lab.open(log.log_end_offset, clean=True)
        else:
            log = lab.open(random.choice([0, log.recovery_point]))
        assert (committed(log), stable(log)) == (after, limit)
        assert sorted(log.producers.active()) == states


def test_all_aborted_records_are_removed_in_the_end(tmp_path: Path) -> None:
    log = Lab(tmp_path, **COMPACT).open()
    workload = Workload(Random(99))
    workload.run(log, 400)
    workload.end_all(log)
    before = latest(committed(log))
    for days in range(4):
        roll(log)
        compact(log, NOW + days * DAY, limit=stable(log))
    assert living(latest(committed(log))).items() >= living(before).items()
    data = content(log)
    headers = [header for _, header in iter_headers(data)]
    last = {other.producer_id: other.last_sequence for other in log.producers.active()}
    for entry in aborted_of(log, 0, log.log_end_offset):
        remaining = [batch for batch in headers if batch.producer_id == entry.producer_id and not batch.is_control]
        assert any(batch.last_sequence == last[entry.producer_id] and not batch.count for batch in remaining)
    spent = [batch for batch in headers if batch.is_control and batch.attributes & DELETE_HORIZON]
    assert spent == [], "markers are removed after their delete horizon"


def test_a_crash_at_any_step_loses_no_committed_record(tmp_path: Path) -> None:
    values = {**COMPACT, "segment_bytes": 1500}
    lab = Lab(tmp_path / "before", CrashingDisk(), **values)
    log = lab.open()
    workload = Workload(Random(7))
    for _ in range(2):
        workload.run(log, 50)
        workload.end_all(log)
        roll(log)
        before, limit = latest(committed(log)), stable(log)
        if log.cleaned_to == 0:
            compact(log, limit=limit)
    assert lab.close(log)
    for stop in range(1000):
        disk = CrashingDisk()
        shutil.copytree(tmp_path / "before", tmp_path / str(stop))
        lab = Lab(tmp_path / str(stop), disk, **values)
        log = lab.open(log.log_end_offset, clean=True)
        disk.left = stop
        try:
            compact(log, NOW + DAY, limit=limit)
        except Crash:
            disk.left = 1 << 60
        else:
            break
        log = lab.open(log.recovery_point)
        assert living(latest(committed(log))) == living(before), stop
        for entry in aborted_of(log, 0, log.log_end_offset):
            assert entry.last_offset in markers(log), "an index entry without its marker would hide other transactions"
    assert stop > 10
