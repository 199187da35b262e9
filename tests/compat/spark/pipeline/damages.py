"""Damages of an archive, one function each: it damages, and says what `archive verify` has to find then."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.offset_ranges import OffsetRange
from tests.compat.spark.pipeline.archives import rewritten


def _with(table: Any, column: str, row: int, value: Any) -> Any:
    """The table with another value in one place."""
    import pyarrow

    values = table.column(column).to_pylist()
    values[row] = value
    number = table.schema.get_field_index(column)
    return table.set_column(number, table.schema.field(number), pyarrow.array(values, table.schema.field(number).type))


class Place:
    """A damaged archive, and its files to damage."""

    def __init__(self, spark: Any, archive: Archive) -> None:
        self.spark = spark
        self.archive = archive
        self.root = Path(archive.storage.root)
        self.files = sorted(
            archive.state().files.values(), key=lambda file: (file.partitions[0].partition, file.partitions[0].first)
        )
        self.file = self.files[1]
        self.part = self.file.partitions[0]
        self.whole = OffsetRange(self.part.first, self.part.last + 1)
        self.middle = self.part.first + self.part.rows // 2

    @property
    def path(self) -> Path:
        return self.root / self.file.path

    def commit(self, number: int) -> Path:
        return self.root / f"_manifest/{number:020d}.json"

    def flip(self, position: int) -> None:
        """One bit of one byte; from the end where the position is negative."""
        data = bytearray(self.path.read_bytes())
        data[position] ^= 0x10
        self.path.write_bytes(data)

    def rewrite(self, change: Callable[[Any], Any]) -> None:
        rewritten(self.archive, self.file.path, change)


# What is to be found: kind, and file or None, and offsets or None.
Wanted = tuple[str, str | None, OffsetRange | None]


def remove_file(at: Place) -> list[Wanted]:
    at.path.unlink()
    return [("missing file", at.file.path, at.whole)]


def truncate(at: Place) -> list[Wanted]:
    at.path.write_bytes(at.path.read_bytes()[:-40])
    return [("changed file", at.file.path, at.whole), ("unreadable file", at.file.path, at.whole)]


def empty(at: Place) -> list[Wanted]:
    at.path.write_bytes(b"")
    return [("changed file", at.file.path, at.whole), ("unreadable file", at.file.path, at.whole)]


def head(at: Place) -> list[Wanted]:
    at.flip(1)
    return [("changed file", at.file.path, at.whole)]


def page(at: Place) -> list[Wanted]:
    at.flip(60)
    return [("changed file", at.file.path, at.whole)]


def footer(at: Place) -> list[Wanted]:
    at.flip(-200)
    return [("changed file", at.file.path, at.whole)]


def statistics(at: Place) -> list[Wanted]:
    """The largest offset in the footer's statistics: readers with a filter would pass over rows."""
    data = at.path.read_bytes()
    position = data.rindex(at.part.last.to_bytes(8, "little"))
    at.flip(position)
    return [("changed file", at.file.path, at.whole)]


def magic(at: Place) -> list[Wanted]:
    at.flip(-1)
    return [("changed file", at.file.path, at.whole), ("unreadable file", at.file.path, at.whole)]


def swap(at: Place) -> list[Wanted]:
    other = at.root / at.files[2].path
    data, others = at.path.read_bytes(), other.read_bytes()
    at.path.write_bytes(others)
    other.write_bytes(data)
    return [("changed file", at.file.path, at.whole), ("changed file", at.files[2].path, None)]


def double_within(at: Place) -> list[Wanted]:
    import pyarrow

    row = at.middle - at.part.first
    at.rewrite(lambda table: pyarrow.concat_tables([table, table.slice(row, 1)]))
    once = OffsetRange(at.middle, at.middle + 1)
    return [("changed file", at.file.path, None), ("rows", at.file.path, at.whole), ("doubled", at.file.path, once)]


def double_by_copy(at: Place) -> list[Wanted]:
    copy = at.path.with_name("copy.parquet")
    shutil.copy(at.path, copy)
    return [("foreign file", str(copy.relative_to(at.root)), at.whole)]


def double_by_own_name(at: Place) -> list[Wanted]:
    writer = at.path.name.partition("-")[0]
    copy = at.path.with_name(f"{writer}-00099.parquet")
    shutil.copy(at.path, copy)
    return [("foreign file", str(copy.relative_to(at.root)), at.whole)]


def double_by_a_writers_name(at: Place) -> list[Wanted]:
    """As of another archive, or of a commit that was lost with the end of the manifest."""
    copy = at.path.with_name(f"{'e' * 12}-00000.parquet")
    shutil.copy(at.path, copy)
    return [("foreign file", str(copy.relative_to(at.root)), at.whole)]


def double_beside_the_topics(at: Place) -> list[Wanted]:
    shutil.copy(at.path, at.root / "mine.parquet")
    return [("foreign file", "mine.parquet", None)]


def no_file_to_be_read(at: Place) -> list[Wanted]:
    at.path.unlink()
    at.path.mkdir()
    return [("unreadable file", at.file.path, at.whole)]


def text_beside_the_topics(at: Place) -> list[Wanted]:
    """The call of pyarrow in docs/pipeline.md fails at it."""
    import pyarrow.dataset

    (at.root / "notes.txt").write_text("mine")
    (at.root / "mine").mkdir()
    (at.root / "mine" / "notes").write_text("mine")
    with pytest.raises(pyarrow.ArrowInvalid):
        pyarrow.dataset.dataset(str(at.root), partitioning="hive")
    return [("foreign file", "notes.txt", None), ("foreign file", "mine/notes", None)]


def what_has_no_end(at: Place) -> list[Wanted]:
    """A far commit; FIFOs as a file, a commit, a foreign file, and where writers are; links that lead round."""
    far = at.commit(10**19)
    shutil.copy(at.commit(1), far)
    other = at.files[0].path
    for path in (at.path, at.root / "fifo.parquet", at.root / "_staging", at.commit(2)):
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    (at.root / other).unlink()
    (at.root / other).symlink_to(at.root / other)
    for link in ("round", "more", "topic=x"):
        (at.root / link).symlink_to(at.root)
    return [
        ("manifest", str(far.relative_to(at.root)), None),
        ("manifest", f"_manifest/{2:020d}.json", None),
        ("unreadable file", at.file.path, at.whole),
        ("unreadable file", other, None),
        *(("foreign file", path, None) for path in ("fifo.parquet", "_staging", "round", "more", "topic=x")),
    ]


def double_by_append(at: Place) -> list[Wanted]:
    rows = at.spark.read.parquet(str(at.root)).where(f"partition = {at.part.partition} AND offset = {at.middle}")
    at.spark.createDataFrame(rows.collect(), rows.schema).write.mode("append").partitionBy("topic", "date").parquet(
        str(at.root)
    )
    return [("foreign file", None, OffsetRange(at.middle, at.middle + 1))]


def change_row(at: Place) -> list[Wanted]:
    at.rewrite(lambda table: _with(table, "value", at.middle - at.part.first, b"another"))
    return [("changed file", at.file.path, None), ("rows", at.file.path, at.whole)]


def change_offset(at: Place) -> list[Wanted]:
    at.rewrite(lambda table: _with(table, "offset", at.middle - at.part.first, 7_000))
    once = OffsetRange(at.middle, at.middle + 1)
    return [("rows", at.file.path, once), ("uncovered", at.file.path, OffsetRange(7000, 7001))]


def change_day(at: Place) -> list[Wanted]:
    import datetime

    late = datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC)
    at.rewrite(lambda table: _with(table, "timestamp", at.middle - at.part.first, late))
    return [("rows", at.file.path, at.whole), ("date", at.file.path, at.whole)]


def drop_column(at: Place) -> list[Wanted]:
    at.rewrite(lambda table: table.drop_columns(["headers"]))
    return [("changed file", at.file.path, at.whole), ("unreadable file", at.file.path, at.whole)]


def remove_commit(at: Place) -> list[Wanted]:
    at.commit(1).unlink()
    return [("manifest", f"_manifest/{1:020d}.json", None)]


def remove_last_commit(at: Place) -> list[Wanted]:
    at.commit(2).unlink()
    return [("view", at.files[-1].path, None)]


def edit_commit(at: Place) -> list[Wanted]:
    at.commit(1).write_text(at.commit(1).read_text().replace('"rows":', '"rows":1', 1))
    return [("manifest", f"_manifest/{1:020d}.json", None)]


def cut_commit(at: Place) -> list[Wanted]:
    at.commit(2).write_bytes(at.commit(2).read_bytes()[:100])
    return [("manifest", f"_manifest/{2:020d}.json", None)]


def shorten_view(at: Place) -> list[Wanted]:
    latest = max((at.root / "_spark_metadata").iterdir(), key=lambda path: int(path.name.partition(".")[0]))
    lines = latest.read_text().split("\n")
    latest.write_text("\n".join(lines[:-1]))
    return [("view", None, None)]


def remove_view(at: Place) -> list[Wanted]:
    shutil.rmtree(at.root / "_spark_metadata")
    return [("view", None, None)]


DAMAGES = [
    remove_file, truncate, empty, head, page, footer, statistics, magic, swap,
    double_within, double_by_copy, double_by_own_name, double_by_a_writers_name, double_beside_the_topics,
    double_by_append, text_beside_the_topics, what_has_no_end, no_file_to_be_read, change_row, change_offset,
    change_day, drop_column, remove_commit, remove_last_commit, edit_commit, cut_commit, shorten_view, remove_view,
]  # fmt: skip
