"""Spark's checkpoint of `archive run`: one directory a generation, with kbroker's note in it.

    ROOT/0/kbroker.json         whose checkpoint it is, and where it began
    ROOT/0/offsets/N            Spark's: where batch N ends; written before the batch
    ROOT/0/commits/N            Spark's: batch N is done
    ROOT/0/sources/0/0          Spark's: where batch 0 begins

The archive itself says what it has; the checkpoint only says what a batch was to be. So a lost one costs nothing, and
another choice of topics begins another generation.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.ingest.subscription import Note, note_of, note_text, source_offsets
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import Storage

NOTE = "kbroker.json"
KEPT = 2  # generations, the newest among them


@dataclass(frozen=True)
class Generation:
    """One checkpoint of Spark's."""

    storage: Storage
    path: str  # within the storage
    note: Note

    @property
    def location(self) -> str:
        """As Spark is given it."""
        return self.storage.uri(self.path)

    def planned(self, batch: int) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Where a batch begins, but for partitions that are new in it, and where it ends."""
        before = f"offsets/{batch - 1}" if batch else "sources/0/0"
        return self._offsets(before), self._offsets(f"offsets/{batch}")

    def position(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]] | None:
        """What the next batch begins with, and where it ends if it is one that was planned and not finished.

        None where no batch was ever planned.
        """
        planned, done = self._numbers("offsets"), self._numbers("commits")
        if not planned:
            return None
        last = max(planned)
        if done and max(done) >= last:
            at = self._offsets(f"offsets/{last}")
            return at, at
        return self.planned(last)

    def _numbers(self, path: str) -> list[int]:
        return [
            int(entry.name) for entry in self.storage.list_directory(f"{self.path}/{path}") if entry.name.isdecimal()
        ]

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        return source_offsets(self.storage.read(path), self.storage.uri(path))


class Checkpoints:
    """The generations of one archive, in a directory of its own or within the archive."""

    def __init__(self, storage: Storage, path: str, archive: str) -> None:
        self._storage = storage
        self._path = path
        self._archive = archive

    @property
    def where(self) -> str:
        """The directory, as people are told of it."""
        return self._storage.uri(self._path) if self._path else self._storage.root

    def newest(self) -> Generation | None:
        """The latest generation; PipelineError where the directory belongs to something or somebody else."""
        names = [entry.name for entry in self._storage.list_directory(self._path) if not entry.name.startswith(".")]
        foreign = sorted(name for name in names if not name.isdecimal())
        if foreign:
            what = "is the checkpoint of another Spark query" if "offsets" in foreign else f"has {foreign[0]} in it"
            raise PipelineError(f"{self.where} {what}, so it is none of this archive: name another with --checkpoint")
        if not names:
            return None
        path = self._in(max(names, key=int))
        note_path = f"{path}/{NOTE}"
        if not self._storage.exists(note_path):
            raise PipelineError(
                f"{self._storage.uri(path)} has no {NOTE}, so it is no checkpoint of `kbroker archive run`: "
                f"remove it, or name another with --checkpoint"
            )
        note = note_of(self._storage.read(note_path), self._storage.uri(note_path))
        if note.archive != self._archive:
            raise PipelineError(
                f"{self.where} is the checkpoint of another archive ({note.subscription}): remove it, or name another "
                f"with --checkpoint"
            )
        return Generation(self._storage, path, note)

    def begin(self, note: Note) -> Generation:
        """A new generation; older ones are removed but for the latest before it."""
        numbers = sorted(
            int(entry.name) for entry in self._storage.list_directory(self._path) if entry.name.isdecimal()
        )
        path = self._in(str(numbers[-1] + 1 if numbers else 0))
        if not self._storage.create(f"{path}/{NOTE}", note_text(note)):
            raise PipelineError(f"another `kbroker archive run` is at work with {self.where}")
        for number in numbers[: -(KEPT - 1)]:
            self._storage.delete(self._in(str(number)), recursive=True)
        return Generation(self._storage, path, note)

    def _in(self, name: str) -> str:
        return f"{self._path}/{name}" if self._path else name


def goes_on(
    position: tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]] | None,
    expected: Mapping[TopicPartition, int],
) -> bool:
    """Whether a query that continues at this position brings what the archive wants next, `expected`, and no more
    than one batch twice. Partitions that the query does not know yet it reads from their start."""
    if position is None:
        return False
    begins, ends = position
    if any(partition not in expected for partition in begins):
        return False  # a topic that is gone, or was taken out by hand
    return all(
        begins[partition] <= offset <= max(begins[partition], ends.get(partition, 0))
        if partition in begins
        else offset <= ends.get(partition, 0)
        for partition, offset in expected.items()
    )
