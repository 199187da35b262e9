"""Record batches from tables: every record once, in order, equal to the row, as two parsers read them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from kafka.record import MemoryRecords

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import create_archive
from kbroker.archive.data_files import write_rows
from kbroker.archive.history.batches import encode_rows
from kbroker.archive.history.blocks import Block, make_block
from kbroker.archive.history.file_reader import FileReader
from kbroker.archive.history.topic_history import TopicHistory
from kbroker.archive.offset_ranges import OffsetRange
from kbroker.archive.topic_state import LeaderEpoch
from protocol.records.batch import BatchHeader, crc_of, iter_batch_records, iter_headers
from tests.unit.support.archive_tables import DAY_MS, HEADERS, append_rows, make_rows


class Row(NamedTuple):
    offset: int
    timestamp: int
    type: int = 0
    key: bytes | None = b"key"
    value: bytes | None = b"value"
    headers: tuple[tuple[str, bytes | None], ...] | None = ()


def make_batch(rows: Sequence[Row], partition: int = 0) -> pa.RecordBatch:
    headers = [
        None if row.headers is None else [{"key": key, "value": value} for key, value in row.headers] for row in rows
    ]
    return pa.record_batch(
        {
            "partition": pa.array([partition] * len(rows), pa.int32()),
            "offset": pa.array([row.offset for row in rows], pa.int64()),
            "timestamp": pa.array([1000 * row.timestamp for row in rows], pa.timestamp("us", "UTC")),
            "timestampType": pa.array([row.type for row in rows], pa.int32()),
            "key": pa.array([row.key for row in rows], pa.binary()),
            "value": pa.array([row.value for row in rows], pa.binary()),
            "headers": pa.array(headers, HEADERS),
        }
    )


def decode(batches: Sequence[bytes | bytearray]) -> tuple[list[BatchHeader], list[Row]]:
    """Return the headers of the batches, and their records, after both parsers have found the same ones."""
    body = b"".join(batches)
    headers, rows = [], []
    for position, header in iter_headers(body):
        assert crc_of(body, position, header.size) == header.crc
        assert (header.producer_id, header.magic, header.codec) == (-1, 2, 0)
        headers.append(header)
        times = []
        for record in iter_batch_records(body[position : position + header.size], header):
            timestamp = header.max_timestamp if header.is_log_append_time else record.timestamp
            times.append(record.timestamp)
            fields = tuple((key.decode(), value) for key, value in record.headers)
            offset = header.base_offset + record.offset_delta
            rows.append(Row(offset, timestamp, int(header.is_log_append_time), record.key, record.value, fields))
        assert header.max_timestamp == max(times)
        assert header.base_timestamp == times[0]
    assert [Row(*item) for item in _by_kafka_python(body)] == rows
    return headers, rows


def _by_kafka_python(body: bytes) -> Iterator[tuple[object, ...]]:
    records = MemoryRecords(body)
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        for record in batch:
            yield (
                record.offset, record.timestamp, record.timestamp_type, record.key, record.value, tuple(record.headers)
            )  # fmt: skip


def fetch_all(history: TopicHistory, start: int, end: int, max_bytes: int = 1 << 20) -> list[Row]:
    """Return the records [start, end) as a consumer reads them: it continues after the last offset of a batch."""
    result, offset = [], start
    while offset < end:
        fetched = history.fetch(0, offset, end, max_bytes)
        assert fetched.next_offset > offset
        headers, rows = decode(fetched.batches)
        if headers:
            assert headers[-1].next_offset <= fetched.next_offset
        assert all(offset <= row.offset < end for row in rows)
        result += rows
        offset = fetched.next_offset
    return result


def expected(rows: Sequence[Row], start: int = 0, end: int = 1 << 62) -> list[Row]:
    chosen = sorted(row for row in rows if start <= row.offset < end)
    return [row._replace(headers=row.headers or (), type=max(row.type, 0)) for row in chosen]


binaries = st.one_of(st.none(), st.binary(max_size=300))
row_lists = st.lists(
    st.builds(
        Row,
        st.one_of(st.integers(0, 60), st.integers(0, 1 << 40)),
        st.one_of(st.integers(-DAY_MS, DAY_MS), st.integers(0, 1 << 42)),
        st.sampled_from((0, 0, 1, -1)),
        binaries,
        binaries,
        st.one_of(st.none(), st.lists(st.tuples(st.text(max_size=8), binaries), max_size=3).map(tuple)),
    ),
    min_size=1,
    max_size=60,
    unique_by=lambda row: row.offset,
).map(sorted)
epoch_lists = st.lists(st.integers(0, 80), unique=True, max_size=4).map(
    lambda starts: tuple(LeaderEpoch(3 + 2 * number, start) for number, start in enumerate(sorted(starts)))
)


@given(row_lists, epoch_lists, st.integers(1, 4000))
@settings(max_examples=150, deadline=None)
def test_rows_become_batches(rows: list[Row], epochs: tuple[LeaderEpoch, ...], max_bytes: int) -> None:
    """Any rows, cut into responses of any size. A batch has one epoch, and its last offset is not in the next one."""
    block = make_block(make_batch(rows))
    following = rows[-1].offset + 5
    found: list[Row] = []
    while len(found) < len(rows):
        rest = block.slice(len(found), len(rows))
        encoded = encode_rows(rest, epochs, following, max_bytes)
        assert encoded.size <= max_bytes or len(encoded.batches) == 1
        headers, decoded = decode(encoded.batches)
        assert headers[-1].next_offset == encoded.next_offset
        found += decoded
        for header in headers:
            earlier = [epoch for epoch in epochs if epoch.start <= header.base_offset]
            assert header.leader_epoch == (earlier[-1].epoch if earlier else -1)
            assert not any(header.base_offset < epoch.start <= header.last_offset for epoch in epochs)
    assert found == expected(rows)


@pytest.fixture
def table(tmp_path: Path) -> ArchiveTable:
    return create_archive(str(tmp_path), {}).create_table("t")


def history_of(table: ArchiveTable, tmp_path: Path, block_bytes: int = 4 << 20) -> TopicHistory:
    return TopicHistory(str(tmp_path), "t", FileReader(block_bytes=block_bytes))


def commit(table: ArchiveTable, rows: Sequence[Row], end: int) -> None:
    start = table.state.resume_offsets().get(0, 0)
    files = write_rows(table.write_target(), [make_batch(rows)]) if rows else []
    table.commit("append", table.state.with_covered([(0, OffsetRange(start, end))]), add=files)


@given(row_lists, st.lists(st.integers(1, 60), max_size=2, unique=True), st.integers(1, 3000), st.data())
@settings(max_examples=10, deadline=None, phases=(Phase.generate,))  # shrinking would take minutes
def test_tables_of_any_rows(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Row], cuts: list[int], max_bytes: int, data: st.DataObject
) -> None:
    """Several commits; files of several days have overlapping offsets; rows of a file may be out of order."""
    rows = [row._replace(timestamp=row.timestamp % (3 * DAY_MS) - DAY_MS) for row in rows]  # three days
    directory = tmp_path_factory.mktemp("archive")
    table = create_archive(str(directory), {}).create_table("t")
    for end in [*sorted(cuts), 1 << 41]:
        start = table.state.resume_offsets().get(0, 0)
        part = data.draw(st.permutations([row for row in rows if start <= row.offset < end]))
        commit(table, part, end)
    history = TopicHistory(str(directory), "t", FileReader(block_bytes=data.draw(st.sampled_from((1, 600, 4 << 20)))))
    assert fetch_all(history, 0, 1 << 41, max_bytes) == expected(rows)
    start, end = sorted(data.draw(st.lists(st.integers(0, 70), min_size=2, max_size=2)))
    assert fetch_all(history, start, end, max_bytes) == expected(rows, start, end)
    timestamp = data.draw(st.integers(-DAY_MS, DAY_MS))
    first = next((row for row in rows if row.timestamp >= timestamp), None)
    found = history.first_since(0, timestamp)
    assert (None if found is None else found[:2]) == (None if first is None else first[:2])


def test_large_values_and_small_limits(table: ArchiveTable, tmp_path: Path) -> None:
    """A record larger than the limit is a response of its own."""
    rows = [Row(offset, offset, value=bytes([offset]) * (1 << 20)) for offset in range(12)]
    commit(table, rows, 12)
    history = history_of(table, tmp_path)
    assert fetch_all(history, 0, 12, max_bytes=1000) == expected(rows)
    assert len(history.fetch(0, 3, 12, max_bytes=3 << 20).batches) == 2


def test_offsets_without_records(table: ArchiveTable, tmp_path: Path) -> None:
    """Gaps are stepped over: within a file, between files, after the last one; and a table may be empty."""
    commit(table, [], 50)
    history = history_of(table, tmp_path)
    assert history.fetch(0, 0, 50, 1000) == ([], 50)
    commit(table, [Row(60, 1), Row(70, 2)], 80)
    commit(table, [Row(90, 3)], 100)
    headers, _ = decode(history.fetch(0, 0, 120, 1).batches)
    assert [(header.base_offset, header.last_offset) for header in headers] == [(60, 69)]
    assert [row.offset for row in fetch_all(history, 0, 120)] == [60, 70, 90]
    assert decode(history.fetch(0, 70, 75, 1000).batches)[0][0].next_offset == 75
    assert history.fetch(0, 91, 120, 1000) == ([], 120)
    assert history.fetch(5, 0, 120, 1000) == ([], 120)


def test_commits_are_seen_before_offsets_are_stepped_over(table: ArchiveTable, tmp_path: Path) -> None:
    """A consumer does not miss records that were archived after the state was read."""
    append_rows(table, first=0, count=5)
    history = history_of(table, tmp_path)
    assert len(fetch_all(history, 0, 5)) == 5
    append_rows(table, first=5, count=5)
    assert [row.offset for row in fetch_all(history, 0, 10)] == list(range(10))


def test_files_that_were_merged_while_they_are_read(table: ArchiveTable, tmp_path: Path) -> None:
    """The state is read again when a file is gone."""
    files = [append_rows(table, first=10 * number, count=10) for number in range(3)]
    history = history_of(table, tmp_path)
    offset = history.fetch(0, 0, 30, 1).next_offset
    merged = write_rows(table.write_target(), [make_rows(0, 0, 30)])
    table.commit("compact", table.state, add=merged, remove=files)
    for file in files:
        Path(file.path.removeprefix("file://")).unlink()
    history._reader.forget(files[1].path)
    assert [row.offset for row in fetch_all(history, offset, 30)] == list(range(offset, 30))


def test_leader_epochs_of_the_state(table: ArchiveTable, tmp_path: Path) -> None:
    state = table.state.with_covered([(0, OffsetRange(0, 10))])
    epochs = {0: (LeaderEpoch(2, 0), LeaderEpoch(4, 6))}
    files = write_rows(table.write_target(), [make_rows(0, 0, 5), make_rows(0, 8, 2)])
    table.commit("append", replace(state, leader_epochs=epochs), add=files)
    history = history_of(table, tmp_path)
    headers, _ = decode(history.fetch(0, 0, 10, 10_000).batches)
    found = [(header.leader_epoch, header.base_offset, header.last_offset) for header in headers]
    assert found == [(2, 0, 5), (4, 8, 9)]
    record = history.first_since(0, 1)
    assert record is not None
    assert record == (1, 1, 2)


def test_memory_is_bounded(table: ArchiveTable, tmp_path: Path) -> None:
    """A row group of 43 MiB is read block by block (a page has up to 18 MiB), and blocks leave the cache."""
    commit(table, [Row(offset, offset, value=b"%06d" % offset * 3000) for offset in range(2500)], 2500)
    reader = FileReader(block_bytes=1 << 20)
    reader.cache.max_bytes = 4 << 20
    history = TopicHistory(str(tmp_path), "t", reader)
    before = pa.total_allocated_bytes()
    offset, peak = 0, 0
    while offset < 2500:
        offset = history.fetch(0, offset, 2500, 1 << 20).next_offset
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert peak < 32 << 20
    assert reader.cache.size <= 4 << 20


def test_a_block_has_no_nulls() -> None:
    block: Block = make_block(make_batch([Row(1, 5, 0, None, None, None)]))
    assert [array.null_count for array in block[:4]] == [0, 0, 0, 0]
