"""The bytes of a log, checked as they are appended: offsets, leader epochs, producers, open transactions.

What the broker keeps of them in memory must equal the result of replaying the log: the leader epoch cache, and the
state of the producers.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kbroker.simulation.disk.log_files import StoredBatch, read_batches, segment_files
from kbroker.storage.producers.producer_state_manager import FIRST_FORWARDER_ID
from protocol.records.batch import NO_PRODUCER_ID, BatchHeader

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition
    from kbroker.simulation.disk.disk import SimDisk
    from kbroker.simulation.runtime.machine import Machine

# Sequence numbers wrap around to 0 here.
_SEQUENCES = 1 << 31


class LogChecker:
    """Checks the batches that were appended to a partition's segments since the last call.

    `skips_unchanged`: do not look at a directory in which nothing has changed. (The seeds of a lone broker depend on
    the look, which draws the order of the entries.) `held_to`: until the high watermark is there, the broker does not
    know which records are stable.
    """

    def __init__(self, *, skips_unchanged: bool = False, held_to: int = 0) -> None:
        self._skips_unchanged = skips_unchanged
        self.held_to = held_to
        # The disk that was read last, and the number of changes in the log's directory.
        self._read: tuple[SimDisk, int] | None = None
        self._base = -1
        self._position = 0
        self._next_offset = -1
        self._leader_epoch = -1
        # The next sequence by (producer id, epoch).
        self._sequences: dict[tuple[int, int], int] = {}
        # The epoch of each producer, and the offset of its last batch.
        self._epochs: dict[int, tuple[int, int]] = {}
        # The producers of the batches that were read since their state was last compared.
        self._changed: set[int] = set()
        # The first offset of open transactions by producer id; (first offset, marker offset) of ended transactions.
        self._open: dict[int, int] = {}
        self._ended: list[tuple[int, int]] = []
        # Whether the log was checked from offset 0.
        self.from_start = False
        # If so, only the active segment is checked: compaction leaves gaps in the others.
        self.is_compacted = False
        self._has_gaps = False

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Return the first offset of the first transaction that is open or whose marker is not committed; else None."""
        self._ended = [(first, end) for first, end in self._ended if end >= high_watermark]
        return min([*self._open.values(), *(first for first, _ in self._ended)], default=None)

    def check_new_batches(self, machine: Machine, partition: Partition) -> str | None:
        log = partition.log
        compacted = self.is_compacted = log.config.is_compacted
        self._has_gaps = compacted and len(partition.state.replicas) > 1
        state = machine.disk, machine.disk.changes[log.directory]
        if self._skips_unchanged and state == self._read:
            return self._check_producer_state(partition)
        listed = segment_files(machine.disk, log.directory)
        if compacted and self._base < 0:
            error = _find_overlap(machine.disk, listed)
            if error:
                return error
        for base, path in listed:
            if base < self._base or (compacted and base != log.active.base_offset):
                continue
            if base > self._base:
                if not compacted and self._next_offset not in (-1, base):
                    if log.log_start_offset < base:
                        return f"{path}: the previous segment ends at {self._next_offset}"
                    # Segments were deleted before they were checked.
                    self._reset()
                if self._next_offset != base:
                    # The batches that were not read since may be of the same producers.
                    self._changed.clear()
                self.from_start = self.from_start or base == 0
                self._base, self._position = base, 0
            data = machine.disk.data(path)
            for batch in read_batches(data, self._position):
                error = self._check_batch(batch, log.log_start_offset) or _check_epoch_cache(partition, batch.header)
                if error:
                    return f"{path} at {batch.start}: {error}"
            if self._position < len(data):
                return f"{path}: no valid batch at position {self._position}"
        self._read = state
        return self._check_producer_state(partition)

    def _check_producer_state(self, partition: Partition) -> str | None:
        """Compare the state of the producers that have written since the last call with that of their batches."""
        log = partition.log
        if not self._changed or log.is_truncating or log.log_end_offset != self._next_offset:
            return None
        states = {state.producer_id: state for state in log.producers.active()}
        changed, self._changed = self._changed, set()
        for producer_id in sorted(changed):
            state, (epoch, _) = states.get(producer_id), self._epochs[producer_id]
            if state is None or state.producer_epoch != epoch:
                return f"producer {producer_id} is in the log with epoch {epoch}; its state is {state}"
            following = self._sequences.get((producer_id, epoch))
            if following is not None and (state.last_sequence + 1) % _SEQUENCES != following:
                return f"producer {producer_id}: sequence {following - 1} is the last in the log; its state is {state}"
        return None

    def _reset(self) -> None:
        self._sequences.clear()
        self._epochs.clear()
        self._changed.clear()
        self._open.clear()
        self.from_start = False

    def _check_batch(self, batch: StoredBatch, log_start_offset: int) -> str | None:
        header = batch.header
        # A follower has the gaps of its leader's compacted log in its last segment too.
        is_gap = self._has_gaps and header.base_offset > self._next_offset
        if self._next_offset not in (-1, header.base_offset) and self._position and not is_gap:
            return f"offset {header.base_offset} follows {self._next_offset - 1}"
        if header.leader_epoch < self._leader_epoch:
            return f"leader epoch {header.leader_epoch} after {self._leader_epoch}"
        if header.producer_id != NO_PRODUCER_ID:
            error = self._check_producer(header, log_start_offset)
            if error:
                return error
        self._position = batch.end
        self._next_offset = header.next_offset
        self._leader_epoch = header.leader_epoch
        return None

    def _check_producer(self, header: BatchHeader, log_start_offset: int) -> str | None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        known_epoch, last_offset = self._epochs.get(producer_id, (-1, -1))
        # A leader whose log began at the log start does not know a producer whose batches were deleted, and appends a
        # late marker of it, as in Kafka.
        is_unknown = header.is_control and last_offset < log_start_offset
        if epoch < known_epoch and not is_unknown:
            return f"producer {producer_id}: epoch {epoch} after {known_epoch}"
        self._epochs[producer_id] = epoch, header.base_offset
        self._changed.add(producer_id)
        if header.is_control:
            first = self._open.pop(producer_id, None)
            if first is not None:
                self._ended.append((first, header.base_offset))
            return None
        if header.is_transactional:
            self._open.setdefault(producer_id, header.base_offset)
        elif producer_id in self._open:
            return f"producer {producer_id}: a non-transactional batch within a transaction"
        if self.is_compacted:
            # Batches in older segments are not checked. The batches of coordinators all have base sequence 0, as in
            # Apache Kafka.
            return None
        expected = self._sequences.get((producer_id, epoch))
        # The sequence of a forwarded batch is its offset in the closing partition, which has others in between.
        has_gap = producer_id >= FIRST_FORWARDER_ID and header.base_sequence > (expected or 0)
        if expected is not None and header.base_sequence != expected and not has_gap:
            return f"producer {producer_id, epoch}: sequence {header.base_sequence}, expected {expected}"
        self._sequences[producer_id, epoch] = (header.last_sequence + 1) % _SEQUENCES
        return None


def _check_epoch_cache(partition: Partition, header: BatchHeader) -> str | None:
    log = partition.log
    if header.leader_epoch < 0 or header.base_offset < log.log_start_offset or log.is_truncating:
        return None
    known = log.epochs.epoch_for(header.base_offset)
    if known == header.leader_epoch:
        return None
    return f"offset {header.base_offset} has leader epoch {header.leader_epoch}, the cache has {log.epochs.entries}"


def _find_overlap(disk: SimDisk, listed: list[tuple[int, str]]) -> str | None:
    """Return an error if segments overlap: compaction must remove all segments that a compacted one replaces."""
    for (_, path), (next_base, _) in pairwise(listed):
        for batch in read_batches(disk.data(path)):
            if batch.header.next_offset > next_base:
                return f"{path} has offset {batch.header.next_offset - 1}, and the next segment begins at {next_base}"
    return None
