"""Spark's checkpoint of `archive run`, in one directory per generation, with kbroker's metadata in it.

    ROOT/0/kbroker.json         which archive and topics it belongs to, and its start offsets
    ROOT/0/sources/0/0          by Spark: where batch 0 begins
    ROOT/0/offsets/N            by Spark: where batch N ends; written before the batch is processed
    ROOT/0/commits/N            by Spark: batch N is finished

The archive is the only authority on what it contains; the checkpoint only defines the batches. So a lost checkpoint
does no harm, and a different choice of topics starts a new generation.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from kbroker.common import TopicPartition
from kbroker.pipeline.archive.ingest.options import Subscription
from kbroker.pipeline.archive.layout import decode_checkpoint_file, nest, unnest
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.storage import Storage

METADATA_FILE = "kbroker.json"
FORMAT = "kbroker-archive-checkpoint"
FORMAT_VERSION = 1
RETAINED_GENERATIONS = 2


@dataclass(frozen=True)
class CheckpointMetadata:
    """kbroker's metadata of a checkpoint."""

    archive_id: str
    query_id: str  # unique to this generation; commits contain it
    subscription: Subscription
    committed_only: bool
    starts: Mapping[TopicPartition, int]  # start offsets of the partitions that existed


class BatchOffsets(NamedTuple):
    """The offsets of a batch by partition; partitions that are new in it are only in `ends`."""

    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class CheckpointGeneration:
    """One checkpoint of Spark."""

    storage: Storage
    path: str
    metadata: CheckpointMetadata

    @property
    def location(self) -> str:
        """The value of Spark's option checkpointLocation."""
        return self.storage.uri(self.path)

    def batch_offsets(self, batch: int) -> BatchOffsets:
        previous = f"offsets/{batch - 1}" if batch else "sources/0/0"
        return BatchOffsets(self._read_offsets(previous), self._read_offsets(f"offsets/{batch}"))

    def next_batch(self) -> BatchOffsets | None:
        """Return the unfinished batch that Spark repeats, or else an empty one at the current position.

        None if no batch was ever started.
        """
        started, finished = self._list_batches("offsets"), self._list_batches("commits")
        if not started:
            return None
        last = max(started)
        if finished and max(finished) >= last:
            position = self._read_offsets(f"offsets/{last}")
            return BatchOffsets(position, position)
        return self.batch_offsets(last)

    def _list_batches(self, directory: str) -> list[int]:
        entries = self.storage.list_directory(f"{self.path}/{directory}")
        return [int(entry.name) for entry in entries if entry.name.isdecimal()]

    def _read_offsets(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        return decode_checkpoint_file(self.storage.read(path), self.storage.uri(path))


class CheckpointDirectory:
    """The checkpoint generations of one archive."""

    def __init__(self, storage: Storage, path: str, archive_id: str) -> None:
        self._storage = storage
        self._path = path
        self._archive_id = archive_id

    @property
    def location(self) -> str:
        return self._storage.uri(self._path) if self._path else self._storage.root

    def newest(self) -> CheckpointGeneration | None:
        """Return the newest generation. Raises PipelineError if the directory contains anything else."""
        names = [entry.name for entry in self._storage.list_directory(self._path) if not entry.name.startswith(".")]
        foreign = sorted(name for name in names if not name.isdecimal())
        if foreign:
            problem = "is the checkpoint of another Spark query" if "offsets" in foreign else f"contains {foreign[0]}"
            raise PipelineError(f"{self.location} {problem}: specify another directory with --checkpoint")
        if not names:
            return None
        path = self._generation_path(max(map(int, names)))
        metadata_path = f"{path}/{METADATA_FILE}"
        if not self._storage.exists(metadata_path):
            raise PipelineError(
                f"{self._storage.uri(path)} has no {METADATA_FILE}, so it is not a checkpoint of "
                f"`kbroker archive run`: specify another directory with --checkpoint"
            )
        metadata = decode_metadata(self._storage.read(metadata_path), self._storage.uri(metadata_path))
        if metadata.archive_id != self._archive_id:
            raise PipelineError(
                f"{self.location} is the checkpoint of another archive (of {metadata.subscription}): specify another "
                f"directory with --checkpoint; without this one, that archive would lose its progress"
            )
        return CheckpointGeneration(self._storage, path, metadata)

    def create(self, metadata: CheckpointMetadata) -> CheckpointGeneration:
        """Create a new generation, and delete all but the newest RETAINED_GENERATIONS."""
        entries = self._storage.list_directory(self._path)
        numbers = sorted(int(entry.name) for entry in entries if entry.name.isdecimal())
        path = self._generation_path(numbers[-1] + 1 if numbers else 0)
        if not self._storage.create(f"{path}/{METADATA_FILE}", encode_metadata(metadata)):
            raise PipelineError(f"another `kbroker archive run` is using {self.location}")
        for number in numbers[: -(RETAINED_GENERATIONS - 1)]:
            self._storage.delete(self._generation_path(number), recursive=True)
        return CheckpointGeneration(self._storage, path, metadata)

    def _generation_path(self, number: int) -> str:
        return f"{self._path}/{number}" if self._path else str(number)


def continues_archive(next_batch: BatchOffsets | None, expected: Mapping[TopicPartition, int]) -> bool:
    """Return whether a query with this next batch reads from the archive's expected offsets, without skipping any.

    It may repeat at most one batch. It reads partitions that it does not know yet from the log start offset.
    """
    if next_batch is None:
        return False
    begins, ends = next_batch.begins, next_batch.ends
    if any(tp not in expected for tp in begins):
        return False  # a topic was deleted, or is no longer subscribed
    return all(
        begins[tp] <= offset <= max(begins[tp], ends.get(tp, 0)) if tp in begins else offset <= ends.get(tp, 0)
        for tp, offset in expected.items()
    )


def encode_metadata(metadata: CheckpointMetadata) -> bytes:
    document = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "archive": metadata.archive_id,
        "query": metadata.query_id,
        "topics": list(metadata.subscription.topics),
        "pattern": metadata.subscription.pattern,
        "committed_only": metadata.committed_only,
        "starts": nest(metadata.starts),
    }
    return json.dumps(document, indent=1).encode()


def decode_metadata(data: bytes, location: str) -> CheckpointMetadata:
    """Decode a kbroker.json. Raises PipelineError for another or a damaged file."""
    try:
        document = json.loads(data)
        if document["format"] != FORMAT or document["version"] != FORMAT_VERSION:
            raise ValueError(f"it is {document['format']} {document['version']}")
        return CheckpointMetadata(
            archive_id=str(document["archive"]),
            query_id=str(document["query"]),
            subscription=Subscription(tuple(document["topics"]), document["pattern"]),
            committed_only=bool(document["committed_only"]),
            starts=unnest(document["starts"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{location} is not checkpoint metadata of `kbroker archive run` ({error}): remove the checkpoint; the "
            f"next run continues from what the archive contains"
        ) from None
