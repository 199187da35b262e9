"""What must hold of a running broker at every moment, looked at from outside of it.

Of each partition: log start <= LSO <= HW <= LEO; the leader is in the ISR; leader epoch, high watermark, LSO and log
start do not go back while the process lives; the next process leads in a later epoch. Below the recovery point, and
under flush.before.ack below the high watermark, the disk cannot lose anything, and nobody is told of more. Of each
log's bytes: batches have right CRCs and no gap between them, leader epochs do not go back, the sequences of a
producer's epoch have no gap and no repetition, and the epochs of a producer do not go back. The LSO is where the first
transaction begins that is open in these bytes, or whose end the high watermark has not passed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kbroker.simulation.checker.history import Place
from kbroker.simulation.disk.log_files import StoredBatch, durable_end, read_batches, segment_files
from kbroker.storage.file_names import LOG, parse_segment_file
from protocol.records.batch import NO_PRODUCER_ID, BatchHeader

if TYPE_CHECKING:
    from kbroker.replica.partition import Partition
    from kbroker.simulation.disk.disk import SimDisk
    from kbroker.simulation.runtime.machine import Machine

# Sequences begin again at 0 after the largest.
_SEQUENCES = 1 << 31


class BrokenInvariant(AssertionError):
    """The state of a broker is one that must not be."""


class _LastState:
    """What was last seen of a partition of one process."""

    def __init__(self) -> None:
        self.leader_epoch = -1
        self.high_watermark = 0
        self.last_stable = 0
        self.log_start = 0


class Invariants:
    """Of one machine. `check` is called between two callbacks of the loop, again and again; a new process is given
    new ones, and what those `before` have seen."""

    def __init__(self, machine: Machine, before: Invariants | None = None) -> None:
        self._machine = machine
        # In which epoch a partition was led by the processes before.
        self._previous_leader_epochs: dict[tuple[bytes, int], int] = {} if before is None else before.leader_epochs()
        # By topic id: a topic of the same name is another one.
        self._seen: dict[tuple[bytes, int], _LastState] = {}
        self._logs: dict[tuple[bytes, int], LogChecker] = {}

    def leader_epochs(self) -> dict[tuple[bytes, int], int]:
        """The last leader epoch of each partition."""
        return {**self._previous_leader_epochs, **{key: seen.leader_epoch for key, seen in self._seen.items()}}

    def check(self, *, durability: bool = True) -> None:
        """Raises BrokenInvariant. `durability`: also what must have been synced, which takes longer."""
        services = self._machine.services
        if services is None:
            return
        for partition in services.replicas.partitions.values():
            if not partition.is_closed and partition.log.offline is None:
                place = partition.tp.topic, partition.tp.partition
                self._check_state(place, partition, services.replicas.maintenance.appends_suspended)
                self._check_bytes(place, partition)
                if durability:
                    self._check_durability(place, partition)

    def _check_state(self, place: Place, partition: Partition, held: bool) -> None:
        log = partition.log
        offsets = [log.log_start_offset, partition.last_stable_offset, partition.high_watermark, log.log_end_offset]
        # Deleted records may end above a high watermark that waits for a sync.
        if offsets[1:] != sorted(offsets[1:]) or offsets[0] > log.log_end_offset:
            self._fail(place, f"log start, LSO, HW, LEO are {offsets}")
        if partition.is_leader and partition.state.local_id not in partition.state.isr:
            self._fail(place, f"the leader is not in the ISR {partition.state.isr}")
        key = (partition.topic_id, place[1])
        if key not in self._seen:
            self._check_dropped(place, partition)
        seen = self._seen.setdefault(key, _LastState())
        # On a full disk there are no new epochs, and then nothing may be appended.
        unchanged = held and log.log_end_offset == partition.first_offset
        if partition.leader_epoch <= self._previous_leader_epochs.get(key, -1) and not unchanged:
            self._fail(place, f"it is led in epoch {partition.leader_epoch}, as by a process before")
        for name, value in (
            ("leader_epoch", partition.leader_epoch),
            ("high_watermark", partition.high_watermark),
            ("last_stable", partition.last_stable_offset),
            ("log_start", log.log_start_offset),
        ):
            if value < getattr(seen, name):
                self._fail(place, f"{name} went back from {getattr(seen, name)} to {value}")
            setattr(seen, name, value)

    def _check_dropped(self, place: Place, partition: Partition) -> None:
        """After a start: a segment that recovery has dropped would come back behind what is appended from now on."""
        prefix = f"{partition.log.directory}/"
        for path in self._machine.disk.removed_files():
            parsed = parse_segment_file(path.removeprefix(prefix)) if path.startswith(prefix) else None
            if parsed is not None and parsed[1] == LOG and parsed[0] >= partition.log.log_end_offset:
                self._fail(place, f"a power loss may bring {path} back")

    def _check_durability(self, place: Place, partition: Partition) -> None:
        claimed = partition.log.recovery_point
        if partition.flush_before_ack:
            claimed = max(claimed, partition.high_watermark)
        if claimed <= partition.log.log_start_offset:
            return
        end = durable_end(self._machine.disk, partition.log.directory)
        if claimed > end:
            self._fail(place, f"up to {claimed} it should be synced, but the disk may lose {end} and more")

    def check_exposed(self, place: Place, end: int) -> None:
        """A client has been told, by an acknowledgement or a record, that there is something below `end`; with
        flush.before.ack it is synced then. (What the broker takes for synced is compared with the disk elsewhere.)"""
        services = self._machine.services
        partition = None if services is None else services.replicas.get(*place)
        if partition is None or partition.is_closed or partition.log.offline is not None:
            return
        if partition.log.recovery_point < end:
            self._fail(place, f"{end - 1} was told, and what is synced ends at {partition.log.recovery_point}")

    def _check_bytes(self, place: Place, partition: Partition) -> None:
        walk = self._logs.setdefault((partition.topic_id, place[1]), LogChecker())
        fault = walk.check_new_batches(self._machine, partition)
        if fault:
            self._fail(place, fault)
        if not walk.is_compacted:
            self._check_stable(place, partition, walk)

    def _check_stable(self, place: Place, partition: Partition, walk: LogChecker) -> None:
        """Of transactions whose first batches were deleted before anybody looked the bytes tell nothing, so the LSO may
        be lower than they say; higher never."""
        high_watermark = partition.high_watermark
        first = walk.first_unstable_offset(high_watermark)
        expected = high_watermark
        if first is not None:
            expected = min(high_watermark, max(first, partition.log.log_start_offset))
        stable = partition.last_stable_offset
        if stable > expected or (stable < expected and walk.from_start):
            self._fail(place, f"LSO {stable}; the transactions in the log make it {expected} (HW {high_watermark})")

    def _fail(self, place: Place, what: str) -> None:
        raise BrokenInvariant(f"{self._machine.name}, {place[0]}-{place[1]}: {what}")


class LogChecker:
    """Reads what is new of a partition's segments, and says what is wrong with it."""

    def __init__(self) -> None:
        self._base = -1
        self._position = 0
        self._next_offset = -1
        self._leader_epoch = -1
        # By (producer id, epoch): the sequence to come.
        self._sequences: dict[tuple[int, int], int] = {}
        self._epochs: dict[int, int] = {}
        # Transactions: by producer id the first offset of one that is open; (first, end) of those that have ended.
        self._open: dict[int, int] = {}
        self._ended: list[tuple[int, int]] = []
        # The log was seen from its very beginning.
        self.from_start = False
        # Only the active segment is read: compaction leaves gaps in the others.
        self.is_compacted = False

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the first transaction begins that is open, or of which the end is not committed; None: none is."""
        self._ended = [one for one in self._ended if one[1] >= high_watermark]
        return min([*self._open.values(), *(first for first, _ in self._ended)], default=None)

    def check_new_batches(self, machine: Machine, partition: Partition) -> str | None:
        log = partition.log
        compacted = self.is_compacted = log.config.is_compacted
        listed = segment_files(machine.disk, log.directory)
        if compacted and self._base < 0:
            fault = _find_overlap(machine.disk, listed)
            if fault:
                return fault
        for base, path in listed:
            if base < self._base or (compacted and base != log.active.base_offset):
                continue
            if base > self._base:
                if not compacted and self._next_offset not in (-1, base):
                    if log.log_start_offset < base:
                        return f"{path}: what comes before it ends at {self._next_offset}"
                    # Deleted before it was looked at.
                    self._forget()
                self.from_start = self.from_start or base == 0
                self._base, self._position = base, 0
            data = machine.disk.data(path)
            for batch in read_batches(data, self._position):
                fault = self._check_batch(batch)
                if fault:
                    return f"{path} at {batch.start}: {fault}"
            if self._position < len(data):
                return f"{path}: what begins at {self._position} is no batch, or a damaged one"
        return None

    def _forget(self) -> None:
        self._sequences.clear()
        self._epochs.clear()
        self._open.clear()
        self.from_start = False

    def _check_batch(self, batch: StoredBatch) -> str | None:
        header = batch.header
        if self._next_offset not in (-1, header.base_offset) and self._position:
            return f"offset {header.base_offset} follows on {self._next_offset - 1}"
        if header.leader_epoch < self._leader_epoch:
            return f"leader epoch {header.leader_epoch} after {self._leader_epoch}"
        if header.producer_id != NO_PRODUCER_ID:
            fault = self._check_producer(header)
            if fault:
                return fault
        self._position = batch.end
        self._next_offset = header.next_offset
        self._leader_epoch = header.leader_epoch
        return None

    def _check_producer(self, header: BatchHeader) -> str | None:
        producer_id, epoch = header.producer_id, header.producer_epoch
        if epoch < self._epochs.get(producer_id, -1):
            return f"producer {producer_id}: epoch {epoch} after {self._epochs[producer_id]}"
        self._epochs[producer_id] = epoch
        if header.is_control:
            first = self._open.pop(producer_id, None)
            if first is not None:
                self._ended.append((first, header.base_offset))
            return None
        if header.is_transactional:
            self._open.setdefault(producer_id, header.base_offset)
        elif producer_id in self._open:
            return f"producer {producer_id}: a batch that is in no transaction, in the middle of one"
        if self.is_compacted:
            # Batches before a roll may be missing here. Coordinators count no sequences: each of their batches begins
            # at 0, as in Apache Kafka.
            return None
        expected = self._sequences.get((producer_id, epoch))
        if expected is not None and header.base_sequence != expected:
            return f"producer {producer_id, epoch}: sequence {header.base_sequence}, expected {expected}"
        self._sequences[producer_id, epoch] = (header.last_sequence + 1) % _SEQUENCES
        return None


def _find_overlap(disk: SimDisk, listed: list[tuple[int, str]]) -> str | None:
    """Compaction replaces segments: none of them may stay next to the compacted one."""
    for (_, path), (next_base, _) in pairwise(listed):
        for batch in read_batches(disk.data(path)):
            if batch.header.next_offset > next_base:
                return f"{path} has offset {batch.header.next_offset - 1}, and the next segment begins at {next_base}"
    return None
