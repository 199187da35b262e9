"""Random operations on a log on a simulated disk; at any change of the disk the process is killed or the power is lost.

After each recovery there is a prefix of what was appended: all of it after a kill, and at least everything below the
recovery point after a power loss. Each batch is as it was, the producer state agrees with the batches, and compaction
has removed only records that were replaced by later ones of the same key.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kbroker.runtime.disk import Disk
from kbroker.simulation.disk.device import MachineCrashed
from kbroker.simulation.disk.disk import SimDisk
from kbroker.storage import checkpoint_files, file_names
from kbroker.storage.log.log import Log
from kbroker.storage.log.log_reads import read_blocking
from kbroker.storage.metadata_files import consume_clean_shutdown_file, write_clean_shutdown_file
from kbroker.storage.recovery.open_log import open_log
from protocol.records.batch import build_batch, iter_batch_records, iter_headers
from tests.sampling import third_of
from tests.unit.support.compaction import DAY, MAP_BYTES, StoppedClock, compact
from tests.unit.support.log_lab import NOW, TOPIC_ID, TP, Background, Lab, append

CRASHES = 12


class RandomlyDelayed(Background):
    """Runs a job at once or later, in order."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.random = random

    def __call__(self, job: Callable[[], Any], on_done: Callable[[Any], None], delay_ms: int = 0, /) -> None:
        self.hold = self.random.random() < 0.5 or bool(self.held)
        super().__call__(job, on_done, delay_ms)


@dataclass
class LogState:
    """What the log must have.

    `written`: (key, value) by offset; `batches`: last sequence by last offset; `safe`: no power loss may remove what is
    below this offset; `start`: the log start offset in the checkpoint.
    """

    written: dict[int, tuple[bytes | None, bytes | None]] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)
    end: int = 0
    safe: int = 0
    start: int = 0
    sequence: int = -1


class CrashTest:
    def __init__(self, path: Path, seed: int, *, compacted: bool) -> None:
        self.random = random = Random(seed)
        self.disk = SimDisk(StoppedClock(), Random(f"{seed}/disk"))
        policy = {"cleanup_policy": ("compact",), "delete_retention_ms": DAY} if compacted else {}
        self.compacted = compacted
        self.lab = Lab(
            path,
            self.disk,
            **policy,
            segment_bytes=random.choice((600, 2000, 20_000)),
            index_interval_bytes=random.choice((0, 100, 4096)),
            retention_ms=-1,
            file_delete_delay_ms=random.choice((0, 1000)),
        )
        self.data_dir = str(self.lab.path.parent)
        self.disk.makedirs(self.data_dir)
        # The broker writes it at its first start.
        checkpoint_files.write_offsets(self.disk, self.data_dir, file_names.RECOVERY_POINTS, {})
        self.disk.sync_dir("/")
        self.state = LogState()
        self.clean = False
        self.log = self.open()

    def open(self) -> Log:
        disk = self.disk
        self.lab.disk = disk
        self.lab.background = RandomlyDelayed(self.random)
        clean = consume_clean_shutdown_file(disk, self.data_dir)
        point, start, cleaned = (self._read_checkpoint(disk, name) for name in FILES)
        log = open_log(
            disk,
            str(self.lab.path),
            TP,
            TOPIC_ID,
            self.lab.config,
            point,
            clean,
            NOW,
            background=self.lab.background,
            random=self.random,
            owner=self.lab.owner,
            log_start_offset=start,
            checkpointed=disk.exists(f"{self.data_dir}/{file_names.RECOVERY_POINTS}"),
        )
        log.cleaned_to = min(cleaned, log.active.base_offset)
        return log

    def _read_checkpoint(self, disk: Disk, name: str) -> int:
        return checkpoint_files.read_offsets(disk, self.data_dir, name).get(TP, 0)

    # Operations.

    def run_operations(self) -> None:
        for _ in range(self.random.randrange(60)):
            name, weight = self.random.choice(ACTIONS)
            if self.random.random() < weight:
                getattr(self, name)()
            self.state.safe = max(self.state.safe, self.log.recovery_point)
            if self.log.health.offline is not None:
                raise AssertionError(self.log.health.offline)

    def append(self) -> None:
        random, state, log = self.random, self.state, self.log
        for _ in range(random.randrange(1, 6)):
            count = random.randrange(1, 5)
            new = [
                (
                    NOW + state.end + n,
                    b"key-%d" % random.randrange(9) if self.compacted or random.random() < 0.5 else None,
                    None if random.random() < 0.1 else random.randbytes(random.choice((3, 30, 300, 5000 // count))),
                    (),
                )
                for n in range(count)
            ]
            batch = build_batch(new, producer_id=7, producer_epoch=0, base_sequence=state.sequence + 1)
            if len(batch) > log.config.segment_bytes:
                continue
            # The log may have it after a crash during the append.
            state.written.update({state.end + n: record[1:3] for n, record in enumerate(new)})
            state.batches[state.end + count - 1] = state.sequence + count
            assert append(log, batch) == state.end
            state.end += count
            state.sequence += count

    def flush(self) -> None:
        end = self.log.log_end_offset
        self.log.complete_flush(self.log.durability.flush_blocking(end))

    def checkpoint(self) -> None:
        self.log.durability.checkpoint()

    def write_checkpoints(self) -> None:
        disk, log = self.disk, self.log
        start = log.log_start_offset
        checkpoint_files.write_offsets(disk, self.data_dir, file_names.RECOVERY_POINTS, {TP: log.recovery_point})
        checkpoint_files.write_offsets(disk, self.data_dir, file_names.LOG_START_OFFSETS, {TP: start})
        checkpoint_files.write_offsets(disk, self.data_dir, file_names.CLEANER_OFFSETS, {TP: log.cleaned_to})
        self.state.start = max(self.state.start, start)

    def run_background(self) -> None:
        self.lab.background.run()

    def run_all_background(self) -> None:
        self.lab.background.run()
        self.lab.background.run_delayed()

    def roll(self) -> None:
        self.log.roll(NOW)

    def delete(self) -> None:
        self.log.delete_records(self.random.randrange(self.log.log_end_offset + 1))

    def retain(self) -> None:
        self.log.enforce_retention(NOW, self.random.randrange(self.log.log_end_offset + 1))

    def compact(self) -> None:
        if self.compacted and self.log.health.offline is None:
            # As the broker does: a checkpoint is written before segments are replaced.
            self.run_all_background()
            self.write_checkpoints()
            compact(self.log, map_bytes=MAP_BYTES)

    # Crashes, and checks after recovery.

    def crash(self) -> None:
        """Crash during or between operations, or shut down cleanly; then recover, perhaps with more crashes."""
        random = self.random
        states: list[SimDisk] = []
        power = random.random() < 0.6
        if random.random() < 0.7:
            states = self._crash_after(random.randrange(60), power)
        try:
            self.run_operations()
            if random.random() < 0.2:
                self.run_all_background()
                if self.lab.close(self.log):
                    self.state.safe = self.state.end
                    self.write_checkpoints()
                    write_clean_shutdown_file(self.disk, self.data_dir, 0)
        except MachineCrashed:
            pass
        else:
            states.append(self.disk.after_crash(power))
        (self.disk,) = states
        while True:
            # Recovery may crash too.
            crashes_again = random.random() < 0.3
            if crashes_again:
                power_again = random.random() < 0.6
                power = power or power_again
                states = self._crash_after(random.randrange(20), power_again)
            try:
                self.log = self.open()
                self.disk.cancel_crash()
                break
            except MachineCrashed:
                (self.disk,) = states
        self.check(power)

    def _crash_after(self, changes: int, power: bool) -> list[SimDisk]:
        """Crash after some changes of the disk. The list gets the disk as it is after the crash."""
        states: list[SimDisk] = []
        disk = self.disk
        disk.crash_after(changes, lambda: states.append(disk.after_crash(power)))
        return states

    def check(self, power: bool) -> None:
        state, log = self.state, self.log
        end = log.log_end_offset
        if power:
            assert end >= state.safe, f"synced up to {state.safe}, left up to {end}"
        else:
            assert end >= state.end, f"appended up to {state.end}, left up to {end}"
        assert self.compacted or end - 1 in state.batches or end <= log.log_start_offset, "the end of a batch"
        assert state.start <= log.log_start_offset <= max(end, state.start)
        batches = self._read_all()
        expected = {offset: record for offset, record in state.written.items() if log.log_start_offset <= offset < end}
        if self.compacted:
            assert batches.items() <= expected.items()
            latest = {key: offset for offset, (key, _) in expected.items()}
            later = {key: offset for offset, (key, _) in batches.items()}
            missing = [offset for key, offset in latest.items() if later.get(key, -1) < offset]
            assert all(expected[offset][1] is None for offset in missing), f"lost: {missing}"
        else:
            assert batches == expected
        self._check_producer(end, power)
        self._check_files()
        for offset in (log.log_start_offset, end // 2, end - 1):
            self._check_read(offset)
        # Continue with what is left.
        state.written = batches | {
            offset: record for offset, record in state.written.items() if offset < log.log_start_offset
        }
        state.batches = {last: sequence for last, sequence in state.batches.items() if last < end}
        state.end, state.safe, state.start = end, max(log.recovery_point, min(state.safe, end)), state.start

    def _read_all(self) -> dict[int, tuple[bytes | None, bytes | None]]:
        log = self.log
        batches = {}
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            data = bytes(read_blocking(log, offset, 1 << 20, log.log_end_offset))
            before = offset
            for position, header in iter_headers(data):
                for record in iter_batch_records(data[position : position + header.size], header):
                    if header.base_offset + record.offset_delta >= log.log_start_offset:
                        batches[header.base_offset + record.offset_delta] = (record.key, record.value)
                offset = header.next_offset
            if not data:
                # Compaction has removed everything there.
                offset = min(segment.base_offset for segment in log.segments if segment.base_offset > before)
            assert offset > before, f"nothing can be read at {offset}"
        return batches

    def _check_producer(self, end: int, power: bool) -> None:
        """Check that the producer can continue after its last batch in the log."""
        state = self.state
        known = {producer.producer_id: producer.last_sequence for producer in self.log.producers.active()}
        last = state.batches.get(end - 1)
        if last is not None and end > self.log.log_start_offset:
            # There may be a gap at the end.
            assert known == {7: last} or (self.compacted and power and known.get(7, -1) < last)
        state.sequence = known.get(7, -1)
        if self.compacted and power:
            state.batches = {last: sequence for last, sequence in state.batches.items() if sequence <= state.sequence}

    def _check_files(self) -> None:
        """Check that the files have complete batches and nothing else."""
        for segment in self.log.segments:
            data = self.disk.read(segment.path())
            assert sum(header.size for _, header in iter_headers(data)) == len(data) == segment.size

    def _check_read(self, offset: int) -> None:
        log = self.log
        if not log.log_start_offset <= offset < log.log_end_offset:
            return
        data = bytes(read_blocking(log, offset, 1 << 20, log.log_end_offset))
        header = next((header for _, header in iter_headers(data)), None)
        if header is None:
            assert self.compacted
        else:
            assert header.last_offset >= offset
            assert header.base_offset <= offset or self.compacted


FILES = (file_names.RECOVERY_POINTS, file_names.LOG_START_OFFSETS, file_names.CLEANER_OFFSETS)
ACTIONS = [
    *[("append", 1.0)] * 6,
    ("flush", 1.0),
    ("checkpoint", 1.0),
    ("write_checkpoints", 0.7),
    *[("run_background", 1.0)] * 3,
    ("run_all_background", 0.5),
    ("roll", 0.3),
    ("delete", 0.15),
    ("retain", 0.5),
    ("compact", 0.5),
]


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("seed", [*third_of(range(30)), 67, 1001, 1136, 1165, 1308])
def test_random_operations_and_crashes(seed: int, compacted: bool) -> None:
    test = CrashTest(Path("/"), seed, compacted=compacted)
    for _ in range(CRASHES):
        test.crash()
