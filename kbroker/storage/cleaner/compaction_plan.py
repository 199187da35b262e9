"""The input and the output of the process that compacts a log: plain data, encoded as JSON."""

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from kbroker.storage.cleaner.source_segments import SourceSegment
from kbroker.storage.indexes.transaction_index import AbortedTransaction
from kbroker.storage.producers.producer_table import FrozenProducers


@dataclass(slots=True, frozen=True)
class CompactionPlan:
    """`sources`: all segments up to the last one that may be compacted; keys are read from `first_dirty_offset` on.

    `map_bytes` bounds the memory for keys, `io_bytes` the read buffer and the write buffer, `rate` the bytes read and
    written per second (None: no limit). `aborted_later`: aborted transactions with a batch in the sources and a marker
    after them. `producers`: the state of the producers, of which compaction retains the last batches.
    """

    directory: str
    sources: tuple[SourceSegment, ...]
    first_dirty_offset: int
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    map_bytes: int
    io_bytes: int
    rate: float | None
    aborted_later: tuple[AbortedTransaction, ...] = ()
    producers: FrozenProducers = field(default_factory=FrozenProducers)

    @property
    def end_offset(self) -> int:
        return self.sources[-1].end_offset


@dataclass(slots=True, frozen=True)
class CleanedSegment:
    """A segment [base_offset, end_offset) whose files are complete and synced under their `.cleaned` names.

    It replaces the segments with the base offsets `source_offsets`.
    """

    source_offsets: tuple[int, ...]
    base_offset: int
    end_offset: int
    size: int
    first_timestamp: int | None
    max_timestamp: int
    max_timestamp_offset: int
    has_transaction_index: bool = False


@dataclass(slots=True, frozen=True)
class CompactionResult:
    """`cleaned_to`: below this offset each key occurs once. `failure`: the reason if nothing was compacted.

    `damaged`: a retry would fail too, since a segment is damaged."""

    cleaned: tuple[CleanedSegment, ...] = ()
    cleaned_to: int = -1
    failure: str | None = None
    damaged: bool = False


def encode_plan(plan: CompactionPlan) -> bytearray:
    """Encode a plan in a thread: a line of JSON, and the producers, of which there may be hundreds of thousands."""
    values = _fields_of(plan)
    del values["producers"]
    return plan.producers.encode(bytearray(_encode(values) + b"\n"))


def decode_plan(data: bytes | bytearray) -> CompactionPlan:
    line, _, producers = data.partition(b"\n")
    values = json.loads(line)
    values["producers"] = FrozenProducers.decode(producers)
    values["sources"] = tuple(SourceSegment(*source) for source in values["sources"])
    values["aborted_later"] = tuple(AbortedTransaction(*transaction) for transaction in values["aborted_later"])
    return CompactionPlan(**values)


def encode_result(result: CompactionResult) -> bytes:
    return _encode({**_fields_of(result), "cleaned": [asdict(cleaned) for cleaned in result.cleaned]})


def decode_result(data: bytes) -> CompactionResult:
    values = json.loads(data)
    values["cleaned"] = tuple(
        CleanedSegment(**{**cleaned, "source_offsets": tuple(cleaned["source_offsets"])})
        for cleaned in values["cleaned"]
    )
    return CompactionResult(**values)


def _fields_of(value: CompactionPlan | CompactionResult) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _encode(values: dict[str, Any]) -> bytes:
    return json.dumps(values).encode()
