"""Ways to damage an archive. Each function damages it, and returns the kinds of differences that verify must find."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kbroker.archive.archive import ArchiveTable
from kbroker.archive.catalogs import open_archive
from kbroker.archive.data_files import DataFile, write_rows
from tests.unit.support.archive_tables import make_rows

Kinds = set[str]


def path_of(uri: str) -> Path:
    return Path(uri.removeprefix("file://"))


class Target:
    """A table of an archive, and one of its files to damage."""

    def __init__(self, directory: Path, topic: str) -> None:
        self.directory = directory
        self.table: ArchiveTable = open_archive(str(directory)).table(topic)
        self.files: list[DataFile] = sorted(self.table.files(), key=lambda file: (file.partition, file.first))
        self.file = self.files[1]
        self.path = path_of(self.file.path)

    @property
    def metadata(self) -> Path:
        return path_of(self.table.iceberg.metadata_location)

    @property
    def manifest_list(self) -> Path:
        snapshot = self.table.iceberg.current_snapshot()
        assert snapshot is not None
        return path_of(snapshot.manifest_list)

    @property
    def manifest(self) -> Path:
        snapshot = self.table.iceberg.current_snapshot()
        assert snapshot is not None
        return path_of(snapshot.manifests(self.table.iceberg.io)[0].manifest_path)

    def flip(self, path: Path, position: int) -> None:
        """Flip one bit of one byte; a negative position counts from the end."""
        data = bytearray(path.read_bytes())
        data[position] ^= 0x10
        path.write_bytes(data)

    def rewrite(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Change the rows of the file; it stays valid Parquet."""
        pq.write_table(change(pq.ParquetFile(self.path).read()), self.path, compression="zstd")

    def set_cell(self, column: str, row: int, value: Any) -> None:
        def change(rows: pa.Table) -> pa.Table:
            values = rows.column(column).to_pylist()
            values[row] = value
            index = rows.schema.get_field_index(column)
            field = rows.schema.field(index)
            return rows.set_column(index, field, pa.array(values, field.type))

        self.rewrite(change)


def remove_file(at: Target) -> Kinds:
    at.path.unlink()
    return {"missing file"}


def truncate_file(at: Target) -> Kinds:
    at.path.write_bytes(at.path.read_bytes()[:-40])
    return {"changed file", "unreadable file"}


def empty_file(at: Target) -> Kinds:
    at.path.write_bytes(b"")
    return {"changed file", "unreadable file"}


def change_first_magic(at: Target) -> Kinds:
    at.flip(at.path, 1)
    return {"changed file"}


def change_page(at: Target) -> Kinds:
    at.flip(at.path, at.path.stat().st_size // 3)
    return {"changed file"}


def change_footer(at: Target) -> Kinds:
    at.flip(at.path, -200)
    return {"changed file"}


def change_last_magic(at: Target) -> Kinds:
    at.flip(at.path, -1)
    return {"changed file", "unreadable file"}


def swap_files(at: Target) -> Kinds:
    other = path_of(at.files[2].path)
    data, other_data = at.path.read_bytes(), other.read_bytes()
    at.path.write_bytes(other_data)
    other.write_bytes(data)
    return {"changed file"}


def duplicate_row(at: Target) -> Kinds:
    at.rewrite(lambda rows: pa.concat_tables([rows, rows.slice(3, 1)]))
    return {"changed file", "rows", "doubled"}


def change_value(at: Target) -> Kinds:
    at.set_cell("value", 3, b"another")
    return {"changed file"}


def change_offset(at: Target) -> Kinds:
    at.set_cell("offset", 3, 7000)
    return {"changed file", "rows", "uncovered"}


def change_date(at: Target) -> Kinds:
    at.set_cell("timestamp", 3, 10**15)
    return {"changed file", "rows", "date"}


def drop_column(at: Target) -> Kinds:
    at.rewrite(lambda rows: rows.drop_columns(["timestampType"]))
    return {"changed file", "columns"}


def replace_file_by_directory(at: Target) -> Kinds:
    at.path.unlink()
    at.path.mkdir()
    return {"unreadable file"}


def replace_file_by_fifo(at: Target) -> Kinds:
    at.path.unlink()
    os.mkfifo(at.path)
    return {"unreadable file"}


def replace_file_by_cycle(at: Target) -> Kinds:
    at.path.unlink()
    at.path.symlink_to(at.path)
    return {"unreadable file"}


def add_foreign_files(at: Target) -> Kinds:
    """Copies under other names, texts, a FIFO, and a cyclic link to a directory."""
    shutil.copy(at.path, at.path.with_name("copy.parquet"))
    (at.path.parent / "notes.txt").write_text("mine")
    os.mkfifo(at.path.parent / "fifo")
    (at.path.parent / "cycle").symlink_to(at.path.parent)
    return {"foreign file"}


def damage_manifest(at: Target) -> Kinds:
    at.manifest.write_bytes(at.manifest.read_bytes()[:-7])
    return {"metadata"}


def remove_manifest(at: Target) -> Kinds:
    at.manifest.unlink()
    return {"metadata"}


def damage_manifest_list(at: Target) -> Kinds:
    at.manifest_list.write_bytes(b"Obj\1" + b"\0" * 100)
    return {"metadata"}


def replace_manifest_list_by_fifo(at: Target) -> Kinds:
    at.manifest_list.unlink()
    os.mkfifo(at.manifest_list)
    return {"metadata"}


def remove_metadata(at: Target) -> Kinds:
    at.metadata.unlink()
    return {"metadata"}


def truncate_metadata(at: Target) -> Kinds:
    at.metadata.write_bytes(at.metadata.read_bytes()[:100])
    return {"metadata"}


def shrink_coverage(at: Target) -> Kinds:
    """Change a property of kbroker in the metadata: covered offsets are not covered any more."""
    document = json.loads(at.metadata.read_bytes())
    covered = json.loads(document["properties"]["kbroker.covered"])
    covered["0"] = [[0, 5], [covered["0"][0][1] - 5, covered["0"][0][1]]]
    document["properties"]["kbroker.covered"] = json.dumps(covered)
    at.metadata.write_text(json.dumps(document))
    return {"layout", "uncovered", "hole"}


def append_by_another_writer(at: Target) -> Kinds:
    """Append a row that is there already, and one that no commit covers, as other programs commit."""
    rows = [make_rows(at.file.partition, offset, 1, at.file.from_ms) for offset in (at.file.first, 9000)]
    files = write_rows(at.table.write_target(), rows)
    with at.table.iceberg.transaction() as transaction, transaction.update_snapshot().fast_append() as producer:
        for number, file in enumerate(files):
            path = path_of(file.path)
            file.entry.file_path = file.path.replace(path.name, f"0000{number}-0-other.parquet")
            path.rename(path_of(file.entry.file_path))
            producer.append_data_file(file.entry)
    return {"foreign change", "doubled", "uncovered"}


def delete_by_another_writer(at: Target) -> Kinds:
    with at.table.iceberg.transaction() as transaction, transaction.update_snapshot().overwrite() as producer:
        producer.delete_data_file(at.file.entry)
    return {"foreign change"}


def list_file_of_another_commit_twice(at: Target) -> Kinds:
    """Commit rows again, as a program with a wrong state would."""
    rows = pq.ParquetFile(at.path).read()
    (file,) = write_rows(at.table.write_target(), rows.to_batches())
    at.table.commit("append", at.table.state, add=[file])
    return {"doubled"}


DAMAGES: list[Callable[[Target], Kinds]] = [
    remove_file, truncate_file, empty_file, change_first_magic, change_page, change_footer, change_last_magic,
    swap_files, duplicate_row, change_value, change_offset, change_date, drop_column, replace_file_by_directory,
    replace_file_by_fifo, replace_file_by_cycle, add_foreign_files, damage_manifest, remove_manifest,
    damage_manifest_list, replace_manifest_list_by_fifo, remove_metadata, truncate_metadata, shrink_coverage,
    append_by_another_writer, delete_by_another_writer, list_file_of_another_commit_twice,
]  # fmt: skip
