"""Which topics an archive run reads, and what the run notes of that beside Spark's checkpoint. Pure."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kbroker.common import TopicPartition
from kbroker.pipeline.errors import PipelineError

NOTE_FORMAT = "kbroker-archive-checkpoint"
NOTE_VERSION = 1

OffsetMap = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class Subscription:
    """Topics by name, or all those whose whole names a regular expression matches."""

    topics: tuple[str, ...] = ()  # sorted, without doubles
    pattern: str | None = None

    def __str__(self) -> str:
        return ", ".join(self.topics) if self.pattern is None else f"the pattern {self.pattern}"

    @property
    def option(self) -> tuple[str, str]:
        """As Spark's Kafka source is told of it."""
        return ("subscribe", ",".join(self.topics)) if self.pattern is None else ("subscribePattern", self.pattern)


def subscription(topics: Iterable[str], pattern: str | None) -> Subscription:
    """What the user asks for; PipelineError where that is nothing, or both, or cannot be the name of a topic."""
    names = tuple(sorted(set(topics)))
    if bool(names) == (pattern is not None):
        raise PipelineError("name the topics to archive, or give --pattern REGEX, and not both")
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name):
            raise PipelineError(f"{name!r} is not the name of a topic")
    return Subscription(names, pattern)


@dataclass(frozen=True)
class Note:
    """What kbroker writes beside Spark's checkpoint: whose it is, and where it began."""

    archive: str  # the archive's id
    query: str  # unique to this checkpoint: what commits carry
    subscription: Subscription
    committed_only: bool
    starts: OffsetMap  # where each partition that there was then began


def note_text(note: Note) -> bytes:
    """The note as a file's content."""
    value = {
        "format": NOTE_FORMAT,
        "version": NOTE_VERSION,
        "archive": note.archive,
        "query": note.query,
        "topics": list(note.subscription.topics),
        "pattern": note.subscription.pattern,
        "committed_only": note.committed_only,
        "starts": nested(note.starts),
    }
    return json.dumps(value, indent=1).encode()


def note_of(data: bytes, where: str) -> Note:
    """A note as it was written; PipelineError for anything else."""
    try:
        value = json.loads(data)
        if value["format"] != NOTE_FORMAT or value["version"] != NOTE_VERSION:
            raise ValueError(f"it is {value['format']} {value['version']}")
        return Note(
            archive=str(value["archive"]),
            query=str(value["query"]),
            subscription=Subscription(tuple(value["topics"]), value["pattern"]),
            committed_only=bool(value["committed_only"]),
            starts=flat(value["starts"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PipelineError(
            f"{where} is no note of `kbroker archive run` ({error}): remove the checkpoint, the archive knows where to "
            f"go on"
        ) from None


def offsets_text(offsets: OffsetMap) -> str:
    """Offsets as Spark's Kafka source writes and reads them: {"topic":{"0":17}}."""
    return json.dumps(nested(offsets), separators=(",", ":"))


def nested(offsets: OffsetMap) -> dict[str, dict[str, int]]:
    """By topic and the partition's number as text."""
    result: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        result.setdefault(topic, {})[str(partition)] = offset
    return result


def flat(value: Any) -> dict[TopicPartition, int]:
    """The reverse of `nested`; ValueError, TypeError or AttributeError for what is something else."""
    return {
        TopicPartition(str(topic), int(partition)): int(offset)
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def source_offsets(data: bytes, where: str) -> dict[TopicPartition, int]:
    """The offsets in a file `offsets/N` or `sources/0/0` of Spark's checkpoint.

    The one is `v1`, a line about the batch, then a line for each source; the other a zero byte, `v1`, one line.
    PipelineError for what is cut, damaged, or of a query that does not read Kafka alone.
    """
    lines = data.lstrip(b"\0").decode("utf-8", "replace").strip().split("\n")
    try:
        if lines[0].strip() != "v1":
            raise ValueError(f"its first line is {lines[0][:20]!r}")
        rows = lines[1:] if len(lines) == 2 else lines[2:]
        if len(rows) != 1:
            raise ValueError(f"it has {len(rows)} sources")
        return {} if rows[0] == "-" else flat(json.loads(rows[0]))
    except (ValueError, TypeError, AttributeError) as error:
        raise PipelineError(f"{where} is not of a query that reads topics: {error}") from None
