"""The items that `kbroker log dump` prints: one per batch, record, index entry, line of a file, or damaged range.

Field names and units are those of Kafka's formats; times are milliseconds since the epoch.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kbroker.runtime.disk import Disk, DiskFile
from kbroker.storage.inspect.batches import Damage

Fields = dict[str, Any]


class DumpItem(NamedTuple):
    """One item of a file. `kind` is "damage" for damaged bytes; `bytes_read` is for the progress bar."""

    kind: str
    fields: Fields
    bytes_read: int = 0


class DumpSelection(NamedTuple):
    """The parts to dump: records, their keys, values and headers; only items within `offsets` (inclusive)."""

    records: bool = False
    values: bool = False
    offsets: tuple[int, int] | None = None

    def includes(self, first: int, last: int) -> bool:
        """Return whether offsets from `first` to `last` overlap the selected offsets."""
        return self.offsets is None or (first <= self.offsets[1] and last >= self.offsets[0])


class DumpFile(NamedTuple):
    """A file to dump. `base_offset` is from its name, `topic` from its directory's name; 0 and "" without."""

    disk: Disk
    path: str
    base_offset: int
    topic: str

    def open(self) -> tuple[DiskFile, int]:
        """Open the file for reading; returns it with its size in bytes."""
        file = self.disk.open(self.path, write=False)
        return file, file.size()

    def read(self) -> bytes:
        return self.disk.read(self.path)


Reader = Callable[[DumpFile, DumpSelection], Iterator[DumpItem]]


def damage_item(damage: Damage) -> DumpItem:
    """Return the item for damaged bytes."""
    fields: Fields = {"position": damage.position, "size": damage.size}
    if damage.offset is not None:
        fields["offset"] = damage.offset
    return DumpItem("damage", {**fields, "reason": damage.reason}, damage.position)
