"""Decodes dead letters again, after their schema was mended.

First a commit writes the decoded rows to the table of the topic, then another one removes them from the dead letters.
After a kill between the two, the next run writes the same rows again, so none is there twice.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kbroker.archive.archive import Archive, ArchiveTable, ConflictError
from kbroker.archive.data_files import DataFile, conform, write_rows
from kbroker.archive.decoding.column_types import COLUMNS
from kbroker.archive.decoding.dead_letters import ARCHIVED, REASON, find_dead_letters
from kbroker.archive.decoding.decoder import NOT_DECODED, Decoded, Decoder
from kbroker.archive.decoding.errors import DecodeError
from kbroker.archive.decoding.inference import infer_text
from kbroker.archive.decoding.json_schema import parse_json
from kbroker.archive.decoding.settings import DecodeSettings
from kbroker.archive.decoding.topic_decoding import TopicDecoding
from kbroker.archive.errors import ArchiveError

# Dead letters are decoded in groups of this size of files, because each group rewrites files of the topic's table.
GROUP_BYTES = 64 << 20
ATTEMPTS = 20


class RetrySummary(NamedTuple):
    """What became of the dead letters of a topic."""

    decoded: int = 0
    remaining: int = 0


def retry_dead_letters(
    archive: Archive,
    topic: str,
    now_ms: int,
    settings: DecodeSettings | None = None,
    registry_url: str = "",
    infer: bool = False,
) -> RetrySummary:
    """Decode the dead letters of a topic with new settings, by default with those of its table.

    With `infer`, the fields of dead letters are added to an inferred JSON schema. Raises ArchiveError; what was decoded
    before remains.
    """
    table, dead = archive.table(topic), find_dead_letters(archive, topic)
    decoding = TopicDecoding(table, settings, registry_url)
    if not decoding.settings.decodings:
        raise ArchiveError(f"{topic} is not decoded: specify --value or --key")
    if dead is None:
        return RetrySummary()
    decoded = remaining = 0
    for group in _groups(dead.files()):
        for attempt in range(ATTEMPTS):
            try:
                result = _Retry(table, dead, decoding).retry(group, now_ms, infer)
                break
            except ConflictError:
                if attempt == ATTEMPTS - 1:
                    raise
                table.refresh()
                dead.refresh()
                # Another process has decoded or merged some of the dead letters.
                paths = {file.path for file in dead.files()}
                group = [file for file in group if file.path in paths]
        decoded += result.decoded
        remaining += result.remaining
    return RetrySummary(decoded, remaining)


def _groups(files: Iterable[DataFile]) -> Iterator[list[DataFile]]:
    """Yield files of one partition in the order of offsets, up to the size of a group."""
    group: list[DataFile] = []
    for file in sorted(files, key=lambda file: (file.partition, file.first)):
        size = sum(each.size for each in group) + file.size
        if group and (group[0].partition != file.partition or size > GROUP_BYTES):
            yield group
            group = []
        group.append(file)
    if group:
        yield group


class _Retry:
    """Decodes dead letters of one partition of a topic again."""

    def __init__(self, table: ArchiveTable, dead: ArchiveTable, decoding: TopicDecoding) -> None:
        self._table = table
        self._dead = dead
        self._decoding = decoding

    def retry(self, files: Sequence[DataFile], now_ms: int, infer: bool) -> RetrySummary:
        """Decode the dead letters of these files. Raises ConflictError."""
        if not files:
            return RetrySummary()
        rows = pa.concat_batches([_read(self._dead, file) for file in files])
        letters = rows.filter(pc.match_substring(rows.column(REASON), NOT_DECODED))
        decoded = self._decode(letters.drop_columns([REASON, ARCHIVED]), now_ms, infer)
        failed: Mapping[int, str] = {}
        if decoded.dead is not None:
            failed = dict(zip(decoded.dead["offset"].to_pylist(), decoded.dead[REASON].to_pylist(), strict=True))
        fixed = decoded.rows.filter(pc.invert(_is_in(decoded.rows.column("offset"), failed)))
        if fixed.num_rows == 0:
            return RetrySummary(0, len(failed))
        self._write(files[0].partition, fixed)
        kept = pc.or_(pc.invert(pc.match_substring(rows.column(REASON), NOT_DECODED)), _is_in(rows["offset"], failed))
        self._dead.commit("retry", self._dead.state, self._rewrite_dead(rows.filter(kept), failed), files)
        return RetrySummary(fixed.num_rows, len(failed))

    def _decode(self, rows: pa.RecordBatch, now_ms: int, infer: bool) -> Decoded:
        if infer:
            for source in self._decoding.inferred_sources():
                text = infer_text(_documents(rows.column(source)))
                if text is not None:
                    self._decoding.infer_more(source, text)
        while True:
            decoded = Decoder(self._decoding.task()).decode(rows, now_ms)
            if not decoded.missing:
                return decoded
            self._decoding.learn(decoded.missing)

    def _write(self, partition: int, fixed: pa.RecordBatch) -> None:
        """Replace the rows of the table that have these offsets, and add those that it does not have."""
        fixed = conform(fixed, self._table.arrow_schema())
        offsets = fixed.column("offset")
        bounds = pc.min_max(offsets).as_py()
        removed, written = [], []
        for file in self._table.files():
            if file.partition == partition and file.first <= bounds["max"] and file.last >= bounds["min"]:
                rows = conform(_read(self._table, file), self._table.arrow_schema())
                if pc.any(_is_in(rows.column("offset"), offsets)).as_py():
                    removed.append(file)
                    written += write_rows(self._table.write_target(), [_replace_decoded(rows, fixed)])
                    fixed = fixed.filter(pc.invert(_is_in(fixed.column("offset"), rows.column("offset"))))
        for gap in self._table.state.gaps:  # erased or expired rows do not come back
            if gap.partition == partition:
                is_gone = pc.and_(pc.greater_equal(fixed["offset"], gap.start), pc.less(fixed["offset"], gap.end))
                fixed = fixed.filter(pc.invert(is_gone))
        written += write_rows(self._table.write_target(), [fixed])
        if written:
            self._table.commit("retry", self._table.state, written, removed)

    def _rewrite_dead(self, rows: pa.RecordBatch, reasons: Mapping[int, str]) -> list[DataFile]:
        texts = [
            reasons.get(offset, reason)
            for offset, reason in zip(rows["offset"].to_pylist(), rows[REASON].to_pylist(), strict=True)
        ]
        rows = rows.set_column(rows.schema.get_field_index(REASON), REASON, pa.array(texts, pa.string()))
        return write_rows(self._dead.write_target(), [rows])


def _read(table: ArchiveTable, file: DataFile) -> pa.RecordBatch:
    try:
        with table.iceberg.io.new_input(file.path).open() as source:
            rows = pq.read_table(source).combine_chunks()
    except (OSError, pa.ArrowException) as error:
        raise ArchiveError(f"{file.path} cannot be read: {error}") from None
    return pa.record_batch([pa.concat_arrays(column.chunks) for column in rows.columns], schema=rows.schema)


def _is_in(offsets: pa.Array, values: Iterable[int]) -> pa.Array:
    return pc.is_in(offsets, pa.array(list(values), pa.int64()) if not isinstance(values, pa.Array) else values)


def _replace_decoded(rows: pa.RecordBatch, fixed: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with the decoded columns of `fixed`, where that has the same offset."""
    found = pc.index_in(rows.column("offset"), fixed.column("offset"))
    own = pa.array(range(rows.num_rows), pa.int64())
    taken = pc.if_else(pc.is_valid(found), pc.add(found.cast(pa.int64()), rows.num_rows), own)
    for name in COLUMNS.values():
        index = rows.schema.get_field_index(name)
        if index >= 0:
            both = pa.concat_arrays([rows.column(index), fixed.column(name)])
            rows = rows.set_column(index, rows.schema.field(index), both.take(taken))
    return rows


def _documents(column: pa.Array) -> Iterator[object]:
    """Yield those values that are JSON."""
    for data in column.to_pylist():
        if data is not None:
            try:
                yield parse_json(data)
            except DecodeError:
                continue
