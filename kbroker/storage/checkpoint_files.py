"""Checkpoint files: offsets by partition of a data directory; the leader epochs and producer snapshots of a log.

Their formats are Apache Kafka's, except that of transaction-index-checkpoint, which Kafka does not have. A damaged file
raises ValueError, and the caller handles the loss: recovery reads more of the log, leader epochs and transaction
indexes are rebuilt from the log.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType

from kbroker.common import TopicPartition
from kbroker.runtime.disk import Disk
from kbroker.storage.file_names import LEADER_EPOCHS, SNAPSHOT, segment_file
from kbroker.storage.producers.producer_state_manager import ProducerStateManager

_VERSION = "0"

# The numbers of entries in the transaction indexes of a log, by the base offsets of the segments that have any.
IndexEntries = Mapping[int, int]


def encode_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Encode an offset checkpoint: version, number of entries, then a line `topic partition offset` for each."""
    return _encode([f"{tp.topic} {tp.partition} {offset}" for tp, offset in offsets.items()])


def decode_offsets(data: bytes) -> dict[TopicPartition, int]:
    """Decode an offset checkpoint. Kafka reads an empty file as one without entries; it has lost its content."""
    offsets = {}
    for line in _decode(data):
        topic, partition, offset = line.split(" ")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
        if not 0 <= int(offset) < 1 << 63:
            raise ValueError(f"offset {offset} of {topic}-{partition}")
    return offsets


def encode_index_entries(entries: Mapping[TopicPartition, IndexEntries]) -> bytes:
    """Encode transaction-index-checkpoint: as above, with lines `topic partition base-offset entries`."""
    return _encode(
        [
            f"{tp.topic} {tp.partition} {base_offset} {count}"
            for tp, by_segment in entries.items()
            for base_offset, count in by_segment.items()
        ]
    )


def decode_index_entries(data: bytes) -> dict[TopicPartition, IndexEntries]:
    """Decode transaction-index-checkpoint."""
    entries: dict[TopicPartition, dict[int, int]] = {}
    for line in _decode(data):
        topic, partition, base_offset, count = line.split(" ")
        entries.setdefault(TopicPartition(topic, int(partition)), {})[int(base_offset)] = int(count)
    return dict(entries)


def encode_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Encode leader-epoch-checkpoint: version, number of entries, then a line `epoch start-offset` for each."""
    return _encode([f"{epoch} {start}" for epoch, start in entries])


def decode_epochs(data: bytes) -> list[tuple[int, int]]:
    entries = []
    for line in _decode(data):
        epoch, start = line.split(" ")
        entries.append((int(epoch), int(start)))
    if entries != sorted(entries) or entries != sorted(entries, key=lambda entry: entry[1]):
        raise ValueError("leader epochs out of order")
    return entries


def _encode(lines: list[str]) -> bytes:
    return "\n".join([_VERSION, str(len(lines)), *lines, ""]).encode()


def _decode(data: bytes) -> list[str]:
    """Return the lines after the version and the number of entries."""
    if not data:
        raise ValueError("empty")
    lines = data.decode("utf-8").split("\n")
    if lines[0] != _VERSION:
        raise ValueError(f"unknown version {lines[0]!r}")
    if len(lines) == 1:
        raise ValueError("the number of entries is missing")
    count = int(lines[1])
    if count < 0 or lines[2 + count :] != [""]:
        raise ValueError(f"{len(lines) - 3} entries where {count} are expected")
    return lines[2 : 2 + count]


def read_offsets(disk: Disk, data_dir: str, name: str) -> dict[TopicPartition, int]:
    """Read an offset checkpoint of a data directory; empty if there is none. Raises ValueError if it is damaged."""
    try:
        return decode_offsets(disk.read(f"{data_dir}/{name}"))
    except FileNotFoundError:
        return {}


def write_offsets(
    disk: Disk, data_dir: str, name: str, offsets: Mapping[TopicPartition, int], *, sync: bool = True
) -> None:
    """Replace an offset checkpoint, durably unless `sync` is False. Raises OSError."""
    disk.write_atomic(f"{data_dir}/{name}", encode_offsets(offsets), sync=sync)


_NO_EPOCHS: Mapping[int, int] = MappingProxyType({})


class LeaderEpochFile:
    """Writes the file when the epochs change, and syncs it before the recovery point passes the change.

    Recovery completes the file from the log, but only from the recovery point on."""

    __slots__ = ("_directory", "_disk", "_durable", "_synced", "_written")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._directory = directory
        self._disk = disk
        # The content that was written last, and the content that was synced last.
        self._written = b""
        self._synced = b""
        # The start offsets of the epochs that are durable in the file.
        self._durable: Mapping[int, int] = _NO_EPOCHS

    @property
    def path(self) -> str:
        return f"{self._directory}/{LEADER_EPOCHS}"

    def read_blocking(self) -> list[tuple[int, int]]:
        """Return (epoch, start offset) in order. Raises ValueError if the file is damaged, FileNotFoundError."""
        data = self._disk.read(self.path)
        entries = decode_epochs(data)
        self._written = data
        return entries

    def mark_synced(self) -> None:
        """Record that the file is durable, because the last shutdown was clean."""
        self._synced = self._written

    def mark_durable(self, entries: Iterable[tuple[int, int]]) -> None:
        """Record that these epochs were synced by an earlier process: they begin below the recovery point."""
        self._durable = dict(entries) or _NO_EPOCHS

    def first_unsynced(self, entries: Iterable[tuple[int, int]]) -> int | None:
        """Return the start offset of the first epoch that a power loss may remove from the file; None if there is none.

        A durable epoch may have an earlier start offset in the file: records before the log start were deleted.
        """
        if self._written is self._synced:
            return None
        unsynced = [start for epoch, start in entries if not 0 <= self._durable.get(epoch, -1) <= start]
        return min(unsynced, default=None)

    def write_job(self, entries: Iterable[tuple[int, int]]) -> Callable[[], None] | None:
        """Return a job for a thread that writes the file without a sync; None if it would not change."""
        data = encode_epochs(entries)
        if data == self._written:
            return None
        self._written = data
        return lambda: self._disk.write_atomic(self.path, data, sync=False)

    def write_blocking(self, entries: Iterable[tuple[int, int]]) -> None:
        """Write the file durably, while no job writes it. Raises OSError."""
        self._written = encode_epochs(entries)
        self.sync_job()()

    def sync_job(self) -> Callable[[], None]:
        """Return a job for a thread that syncs the content that was written last."""
        data = self._written

        def write() -> None:
            if data != self._synced:
                self._disk.write_atomic(self.path, data)
                self._synced, self._durable = data, dict(decode_epochs(data))

        return write


# An own empty set takes 216 bytes.
_NO_OFFSETS: frozenset[int] = frozenset()


class ProducerSnapshots:
    """The producer snapshots of a log: `.snapshot` files, each named after the offset at which it was taken.

    A snapshot at the base offset of a segment is kept as long as the segment. A snapshot at another offset is useful
    only while it is the newest, so the next one replaces it. `offsets`: the offsets of the snapshots on disk. Files of
    some are missing if the disk was full when they should
    have been written."""

    __slots__ = ("_directory", "_disk", "offsets")

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.offsets = _NO_OFFSETS

    def _path(self, offset: int) -> str:
        return segment_file(self._directory, offset, SNAPSHOT)

    def is_missing(self, offset: int, first_base_offset: int) -> bool:
        """Return whether a snapshot at `offset` is to be written. A log without records needs none."""
        return offset not in self.offsets and offset > first_base_offset

    def write_job(
        self, offset: int, producers: ProducerStateManager, base_offsets: Collection[int], *, sync: bool
    ) -> Callable[[], None]:
        """Return a job for a thread that writes the current state, at log end offset `offset`.

        `base_offsets` are those of the segments. A snapshot needs no sync, since its CRC reveals a loss and recovery
        then reads more of the log. Only a snapshot at the end of a segment is synced: retention may delete the batches
        it is from.
        """
        # A snapshot that a checkpoint wrote before may be unsynced.
        is_needed = offset > min(base_offsets) if sync else self.is_missing(offset, min(base_offsets))
        if not is_needed:
            return _do_nothing
        encode = producers.to_snapshot()
        replaced = [old for old in self.offsets if old < offset and old not in base_offsets]
        self.offsets = self.offsets.difference(replaced) | {offset}

        def write() -> None:
            self._disk.write_atomic(self._path(offset), encode(), sync=sync)
            for old in replaced:
                self._unlink_blocking(old)

        return write

    def remove(self, offsets: Iterable[int]) -> None:
        """Remove snapshots from `offsets`, because they are deleted together with their segments."""
        self.offsets = self.offsets.difference(offsets)

    # Recovery, in a thread.

    def load_newest_blocking(self, limit: int, repairs: list[str]) -> tuple[ProducerStateManager, int] | None:
        """Return the newest valid snapshot at or before `limit`, and its offset. Removals are added to `repairs`."""
        for offset in sorted([offset for offset in self.offsets if offset <= limit], reverse=True):
            path = self._path(offset)
            if not self._disk.exists(path):
                self.offsets -= {offset}
                continue
            try:
                return ProducerStateManager.from_snapshot(self._disk.read(path), offset), offset
            except ValueError as error:
                repairs.append(f"{path}: {error}; removed")
                self._remove_blocking(offset)
        return None

    def remove_after_blocking(self, offset: int) -> None:
        """Remove the snapshots after an offset to which the log was truncated. Raises OSError."""
        for later in [known for known in self.offsets if known > offset]:
            self._remove_blocking(later)

    def _remove_blocking(self, offset: int) -> None:
        self._unlink_blocking(offset)
        self.offsets -= {offset}

    def _unlink_blocking(self, offset: int) -> None:
        with suppress(FileNotFoundError):
            self._disk.unlink(self._path(offset))


def _do_nothing() -> None:
    pass
