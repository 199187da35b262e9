"""The log files of a partition on a simulated disk, written without a broker."""

from kbroker.simulation.disk.disk import SimDisk
from kbroker.simulation.disk.log_files import read_batches
from kbroker.simulation.runtime.machine import DATA
from protocol.records.batch import BatchHeader, parse_header
from tests.unit.support.client import batch

DIRECTORY = f"{DATA}/t-0"


class ReplicaFiles:
    """The partition t-0, on `disk`."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        disk.makedirs(DIRECTORY)

    def append(
        self,
        offset: int,
        value: bytes,
        *,
        epoch: int,
        segment: int = 0,
        producer: tuple[int, int, int] | None = None,
    ) -> BatchHeader:
        """Append a batch with one record. `producer` is (id, epoch, base sequence)."""
        return self.append_batch(batch(value, producer=producer), offset, epoch=epoch, segment=segment)

    def append_batch(self, data: bytearray, offset: int, *, epoch: int, segment: int = 0) -> BatchHeader:
        """Append a batch with one record, with this offset and leader epoch."""
        data[0:8] = offset.to_bytes(8, "big")
        data[12:16] = epoch.to_bytes(4, "big")
        header = parse_header(data)
        assert header.next_offset == offset + 1
        file = self.disk.open(_path(segment), create=True)
        file.append(data)
        file.close()
        return header

    def roll(self, segment: int) -> None:
        """Begin an empty segment."""
        self.disk.open(_path(segment), create=True).close()

    def truncate(self, offset: int, *, segment: int = 0) -> None:
        """Cut a segment before this offset."""
        data = self.disk.data(_path(segment))
        end = next(each.start for each in read_batches(data) if each.header.base_offset == offset)
        file = self.disk.open(_path(segment))
        file.truncate(end)
        file.close()

    def remove(self, segment: int) -> None:
        self.disk.unlink(_path(segment))


def _path(segment: int) -> str:
    return f"{DIRECTORY}/{segment:020}.log"
