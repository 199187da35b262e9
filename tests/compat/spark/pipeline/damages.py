"""Ways to damage an archive. Each function damages it, and returns what `archive verify` must find."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.layout import OffsetRange
from tests.compat.spark.pipeline.archives import rewrite_file


class ExpectedFinding(NamedTuple):
    """A difference that must be found; None accepts any file or offsets."""

    kind: str
    file: str | None
    offsets: OffsetRange | None = None


class Target:
    """An archive, and one of its files to damage."""

    def __init__(self, spark: Any, archive: Archive) -> None:
        self.spark = spark
        self.archive = archive
        self.root = Path(archive.storage.root)
        self.files = sorted(
            archive.state().files.values(), key=lambda file: (file.partitions[0].partition, file.partitions[0].first)
        )
        self.file = self.files[1]
        self.stats = self.file.partitions[0]
        self.offsets = OffsetRange(self.stats.first, self.stats.last + 1)
        self.middle = self.stats.first + self.stats.rows // 2

    @property
    def path(self) -> Path:
        return self.root / self.file.path

    def commit(self, number: int) -> Path:
        return self.root / f"_manifest/{number:020d}.json"

    def expect(self, kind: str) -> ExpectedFinding:
        """Return a finding about the file and all its offsets."""
        return ExpectedFinding(kind, self.file.path, self.offsets)

    def flip_bit(self, position: int) -> None:
        """Flip one bit of one byte; a negative position counts from the end."""
        data = bytearray(self.path.read_bytes())
        data[position] ^= 0x10
        self.path.write_bytes(data)

    def rewrite(self, change: Callable[[Any], Any]) -> None:
        rewrite_file(self.archive, self.file.path, change)

    def copy_file(self, name: str) -> list[ExpectedFinding]:
        """Copy the file to another name in its directory."""
        copy = self.path.with_name(name)
        shutil.copy(self.path, copy)
        return [ExpectedFinding("foreign file", str(copy.relative_to(self.root)), self.offsets)]


def remove_file(at: Target) -> list[ExpectedFinding]:
    at.path.unlink()
    return [at.expect("missing file")]


def truncate_file(at: Target) -> list[ExpectedFinding]:
    at.path.write_bytes(at.path.read_bytes()[:-40])
    return [at.expect("changed file"), at.expect("unreadable file")]


def empty_file(at: Target) -> list[ExpectedFinding]:
    at.path.write_bytes(b"")
    return [at.expect("changed file"), at.expect("unreadable file")]


def change_first_magic(at: Target) -> list[ExpectedFinding]:
    at.flip_bit(1)
    return [at.expect("changed file")]


def change_page(at: Target) -> list[ExpectedFinding]:
    at.flip_bit(60)
    return [at.expect("changed file")]


def change_footer(at: Target) -> list[ExpectedFinding]:
    at.flip_bit(-200)
    return [at.expect("changed file")]


def change_statistics(at: Target) -> list[ExpectedFinding]:
    """Change the largest offset in the footer's statistics: readers with a filter would skip rows."""
    at.flip_bit(at.path.read_bytes().rindex(at.stats.last.to_bytes(8, "little")))
    return [at.expect("changed file")]


def change_last_magic(at: Target) -> list[ExpectedFinding]:
    at.flip_bit(-1)
    return [at.expect("changed file"), at.expect("unreadable file")]


def swap_files(at: Target) -> list[ExpectedFinding]:
    other = at.root / at.files[2].path
    data, other_data = at.path.read_bytes(), other.read_bytes()
    at.path.write_bytes(other_data)
    other.write_bytes(data)
    return [at.expect("changed file"), ExpectedFinding("changed file", at.files[2].path)]


def duplicate_row(at: Target) -> list[ExpectedFinding]:
    import pyarrow

    row = at.middle - at.stats.first
    at.rewrite(lambda table: pyarrow.concat_tables([table, table.slice(row, 1)]))
    return [
        ExpectedFinding("changed file", at.file.path),
        at.expect("rows"),
        ExpectedFinding("doubled", at.file.path, OffsetRange(at.middle, at.middle + 1)),
    ]


def copy_to_other_name(at: Target) -> list[ExpectedFinding]:
    return at.copy_file("copy.parquet")


def copy_to_name_of_same_writer(at: Target) -> list[ExpectedFinding]:
    return at.copy_file(f"{at.path.name.partition('-')[0]}-00099.parquet")


def copy_to_name_of_unknown_writer(at: Target) -> list[ExpectedFinding]:
    """Copy a file as if it came from another archive, or from a commit that was lost with the end of the manifest."""
    return at.copy_file(f"{'e' * 12}-00000.parquet")


def copy_to_root(at: Target) -> list[ExpectedFinding]:
    shutil.copy(at.path, at.root / "mine.parquet")
    return [ExpectedFinding("foreign file", "mine.parquet")]


def replace_file_by_directory(at: Target) -> list[ExpectedFinding]:
    at.path.unlink()
    at.path.mkdir()
    return [at.expect("unreadable file")]


def add_text_files(at: Target) -> list[ExpectedFinding]:
    """Add text files, which the pyarrow example in docs/pipeline.md cannot read."""
    import pyarrow.dataset

    (at.root / "notes.txt").write_text("mine")
    (at.root / "mine").mkdir()
    (at.root / "mine" / "notes").write_text("mine")
    with pytest.raises(pyarrow.ArrowInvalid):
        pyarrow.dataset.dataset(str(at.root), partitioning="hive")
    return [ExpectedFinding("foreign file", "notes.txt"), ExpectedFinding("foreign file", "mine/notes")]


def add_files_that_block_or_never_end(at: Target) -> list[ExpectedFinding]:
    """Add a commit with a huge number, FIFOs for a data file, a commit and the staging directory, and cyclic links."""
    huge_commit = at.commit(10**19)
    shutil.copy(at.commit(1), huge_commit)
    other = at.files[0].path
    for path in (at.path, at.root / "fifo.parquet", at.root / "_staging", at.commit(2)):
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    (at.root / other).unlink()
    (at.root / other).symlink_to(at.root / other)
    for link in ("cycle", "more", "topic=x"):
        (at.root / link).symlink_to(at.root)
    return [
        ExpectedFinding("manifest", str(huge_commit.relative_to(at.root))),
        ExpectedFinding("manifest", f"_manifest/{2:020d}.json"),
        at.expect("unreadable file"),
        ExpectedFinding("unreadable file", other),
        *(ExpectedFinding("foreign file", path) for path in ("fifo.parquet", "_staging", "cycle", "more", "topic=x")),
    ]


def append_with_spark(at: Target) -> list[ExpectedFinding]:
    rows = at.spark.read.parquet(str(at.root)).where(f"partition = {at.stats.partition} AND offset = {at.middle}")
    at.spark.createDataFrame(rows.collect(), rows.schema).write.mode("append").partitionBy("topic", "date").parquet(
        str(at.root)
    )
    return [ExpectedFinding("foreign file", None, OffsetRange(at.middle, at.middle + 1))]


def change_value(at: Target) -> list[ExpectedFinding]:
    at.rewrite(lambda table: _set_cell(table, "value", at.middle - at.stats.first, b"another"))
    return [ExpectedFinding("changed file", at.file.path), at.expect("rows")]


def change_offset(at: Target) -> list[ExpectedFinding]:
    at.rewrite(lambda table: _set_cell(table, "offset", at.middle - at.stats.first, 7_000))
    return [
        ExpectedFinding("rows", at.file.path, OffsetRange(at.middle, at.middle + 1)),
        ExpectedFinding("uncovered", at.file.path, OffsetRange(7000, 7001)),
    ]


def change_date(at: Target) -> list[ExpectedFinding]:
    import datetime

    other = datetime.datetime(2031, 1, 1, tzinfo=datetime.UTC)
    at.rewrite(lambda table: _set_cell(table, "timestamp", at.middle - at.stats.first, other))
    return [at.expect("rows"), at.expect("date")]


def drop_column(at: Target) -> list[ExpectedFinding]:
    at.rewrite(lambda table: table.drop_columns(["headers"]))
    return [at.expect("changed file"), at.expect("unreadable file")]


def remove_commit(at: Target) -> list[ExpectedFinding]:
    at.commit(1).unlink()
    return [ExpectedFinding("manifest", f"_manifest/{1:020d}.json")]


def remove_last_commit(at: Target) -> list[ExpectedFinding]:
    at.commit(2).unlink()
    return [ExpectedFinding("view", at.files[-1].path)]


def edit_commit(at: Target) -> list[ExpectedFinding]:
    at.commit(1).write_text(at.commit(1).read_text().replace('"rows":', '"rows":1', 1))
    return [ExpectedFinding("manifest", f"_manifest/{1:020d}.json")]


def truncate_commit(at: Target) -> list[ExpectedFinding]:
    at.commit(2).write_bytes(at.commit(2).read_bytes()[:100])
    return [ExpectedFinding("manifest", f"_manifest/{2:020d}.json")]


def shorten_spark_metadata(at: Target) -> list[ExpectedFinding]:
    latest = max((at.root / "_spark_metadata").iterdir(), key=lambda path: int(path.name.partition(".")[0]))
    lines = latest.read_text().split("\n")
    latest.write_text("\n".join(lines[:-1]))
    return [ExpectedFinding("view", None)]


def remove_spark_metadata(at: Target) -> list[ExpectedFinding]:
    shutil.rmtree(at.root / "_spark_metadata")
    return [ExpectedFinding("view", None)]


def _set_cell(table: Any, column: str, row: int, value: Any) -> Any:
    import pyarrow

    values = table.column(column).to_pylist()
    values[row] = value
    index = table.schema.get_field_index(column)
    return table.set_column(index, table.schema.field(index), pyarrow.array(values, table.schema.field(index).type))


DAMAGES = [
    remove_file, truncate_file, empty_file, change_first_magic, change_page, change_footer, change_statistics,
    change_last_magic, swap_files, duplicate_row, copy_to_other_name, copy_to_name_of_same_writer,
    copy_to_name_of_unknown_writer, copy_to_root, append_with_spark, add_text_files,
    add_files_that_block_or_never_end, replace_file_by_directory, change_value, change_offset, change_date,
    drop_column, remove_commit, remove_last_commit, edit_commit, truncate_commit, shorten_spark_metadata,
    remove_spark_metadata,
]  # fmt: skip
