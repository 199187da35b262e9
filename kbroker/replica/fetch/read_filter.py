"""Read filters: which records of a partition consumers see. Without a filter they see all.

Followers always read the log as it is. A filter drops batches, or rewrites them with fewer records, as compaction does.
"""

from enum import Enum
from typing import NamedTuple, Protocol

from kbroker.common import Buffer
from protocol.fast.fetch import FIRST_RACK_VERSION, FIRST_START_OFFSET_VERSION, FetchRequest, TopicKey
from protocol.records.batch import (
    LENGTH_OVERHEAD,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PREFIX,
    BatchHeader,
    assemble_batch,
    parse_header,
)
from protocol.records.compression import GZIP, NONE, compress
from protocol.records.control import EndTransactionMarker, build_end_marker


class ReadFilter(Protocol):
    """Filters one batch at a time. It has no state, since threads use it too."""

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        """Return what consumers see of a complete batch: `batch` itself, a batch with fewer records, or None.

        A rewritten batch keeps its base offset, last offset and producer fields. Control batches must be kept.
        `now_ms`: the wall clock. Raises MalformedError for a batch that is damaged, or has more than `max_bytes`
        of decompressed records.
        """
        ...


class ReadView(Protocol):
    """A topic whose records are those of its source that pass `read_filter`; None for all of them.

    `source`: the name of that topic.
    """

    source: str
    read_filter: ReadFilter | None

    @property
    def is_current(self) -> bool:
        """Whether the topic still exists, with the same filter."""
        ...


class ReadViews(Protocol):
    def find(self, key: TopicKey) -> ReadView | None:
        """Return the view with a topic's name (str) or id (16 bytes); None if the topic is not a view."""
        ...


class FilterSequence:
    """Applies several filters, one after the other."""

    __slots__ = ("_filters",)

    def __init__(self, filters: tuple[ReadFilter, ...]) -> None:
        self._filters = filters

    def __eq__(self, other: object) -> bool:
        # Each fetch from a view combines the same filters again.
        return isinstance(other, FilterSequence) and self._filters == other._filters

    def __hash__(self) -> int:
        return hash(self._filters)

    def filter_batch(self, batch: memoryview, header: BatchHeader, now_ms: int, max_bytes: int) -> Buffer | None:
        kept: Buffer = batch
        for read_filter in self._filters:
            filtered = read_filter.filter_batch(memoryview(kept), header, now_ms, max_bytes)
            if filtered is None:
                return None
            if filtered is not kept:
                kept, header = filtered, parse_header(filtered)
        return kept


def combine(*filters: ReadFilter | None) -> ReadFilter | None:
    """Return one filter that applies all in order; None if all are None."""
    present = tuple([each for each in filters if each is not None])
    return FilterSequence(present) if len(present) > 1 else present[0] if present else None


# The ranges that a partition remembers, for clients that stay at different offsets.
_MAX_RANGES = 16
_NO_TRANSACTION = EndTransactionMarker(True, 0)


class _HiddenRange(NamedTuple):
    read_filter: ReadFilter
    start: int
    end: int


class HiddenRanges:
    """Ranges of offsets in which a read filter has found nothing for consumers, as long as the log has its `contents`.

    A fetch within a range continues at its end. So a client that stays at its offset until it receives a record does
    not make the broker scan the same batches again.
    """

    __slots__ = ("_ranges", "contents")

    def __init__(self, contents: object) -> None:
        self.contents = contents
        # The one that was used last is the last.
        self._ranges: list[_HiddenRange] = []

    def add(self, read_filter: ReadFilter, start: int, end: int) -> None:
        """Add a range that was scanned, perhaps from the end of another one on."""
        kept = []
        for each in self._ranges:
            if each.read_filter != read_filter or not each.start <= start <= each.end:
                kept.append(each)
            else:
                start, end = each.start, max(each.end, end)
        self._ranges = [*kept[-_MAX_RANGES + 1 :], _HiddenRange(read_filter, start, end)]

    def end_of(self, read_filter: ReadFilter, offset: int) -> int:
        """Return the end of the range that contains an offset; the offset itself if there is none."""
        for each in self._ranges:
            if each.start <= offset < each.end and each.read_filter == read_filter:
                return each.end
        return offset


class PositionForm(Enum):
    """How a batch that moves a position looks. No form moves all clients.

    CONTROL: a commit marker of no producer. Clients with version 11 or later skip it: librdkafka commits the offset
    after it, and KafkaJS moves, which both do not after a batch without records.

    EMPTY: without records, as compaction leaves batches. Versions up to 10 get it, since kafka-go passes a control
    record to the application, and rskafka fails. Both stay at their offset (see HiddenRanges), others move.

    EMPTY_GZIP: the same, with bytes after its header. Without them kafka-go rewinds to offset 1 if the response has
    nothing else, and only compression gives no records some bytes. It is for versions 5 to 10 without a session, which
    kafka-go sends: librdkafka would abort its process, and rskafka may lack gzip, but both have other versions.
    """

    CONTROL = 0
    EMPTY = 1
    EMPTY_GZIP = 2


def position_form(request: FetchRequest) -> PositionForm:
    """Return the form of a batch that is alone in its response."""
    if request.version >= FIRST_RACK_VERSION:
        return PositionForm.CONTROL
    has_session = request.session_id or request.session_epoch >= 0
    return (
        PositionForm.EMPTY if has_session or request.version < FIRST_START_OFFSET_VERSION else PositionForm.EMPTY_GZIP
    )


def position_batch(form: PositionForm, last_offset: int, leader_epoch: int) -> bytearray:
    """Return a batch that moves the position of a consumer to `last_offset` + 1."""
    if form is PositionForm.CONTROL:
        batch = build_end_marker(_NO_TRANSACTION, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, NO_TIMESTAMP)
    else:
        codec = GZIP if form is PositionForm.EMPTY_GZIP else NONE
        batch = assemble_batch(
            compress(codec, b""), count=0, last_offset_delta=0, base_timestamp=NO_TIMESTAMP, max_timestamp=NO_TIMESTAMP,
            attributes=codec,
        )  # fmt: skip
    # Neither field is covered by the CRC.
    PREFIX.pack_into(batch, 0, last_offset, len(batch) - LENGTH_OVERHEAD, leader_epoch)
    return batch


class Filtered(NamedTuple):
    """How a fetch reads a partition with a read filter. `hidden_ranges`: those of the log that it reads."""

    read_filter: ReadFilter
    hidden_ranges: HiddenRanges
    form: PositionForm
