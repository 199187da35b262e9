"""Archives for tests, created without Spark: the content of their data files is not Parquet."""

from kbroker.pipeline.archive import staging
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.layout import data_name
from kbroker.pipeline.archive.manifest import ArchiveState, CoveredRange, DataFile, ManifestCommit, PartitionStats
from kbroker.pipeline.storage.storage import Storage

SETTINGS = {"committed_only": False}


def create_archive(storage: Storage) -> Archive:
    return Archive.open_or_create(storage, SETTINGS)


def new_data_path(writer_id: str = "", number: int = 0, topic: str = "t", date: str = "2024-02-29") -> str:
    return f"topic={topic}/date={date}/{data_name(writer_id or staging.new_writer_id(), number)}"


def make_file(path: str, first: int = 0, rows: int = 1, partitions: int = 1) -> DataFile:
    """Return a data file with `rows` rows of each partition from offset `first`."""
    topic, date, _ = (part.partition("=")[2] for part in path.split("/"))
    stats = tuple(
        PartitionStats(partition, first, first + rows - 1, rows, 10 * rows, 1000, 2000, 2**63 + partition)
        for partition in range(partitions)
    )
    return DataFile(path, topic, date, len(path), "0" * 64, stats)


def append_file(archive: Archive, path: str = "", rows: int = 1) -> DataFile:
    """Create and commit a data file with the next rows of partition 0."""
    path = path or new_data_path()
    archive.storage.create(path, path.encode())
    files: list[DataFile] = []

    def build(state: ArchiveState) -> ManifestCommit:
        start = max((offsets.end for ranges in state.covered.values() for offsets in ranges), default=0)
        files[:] = [make_file(path, start, rows)]
        return ManifestCommit("append", 1, add=tuple(files), covered=(CoveredRange("t", 0, start, start + rows),))

    archive.commit(build)
    return files[0]


def remove_files(archive: Archive, *paths: str) -> None:
    """Commit the removal of data files without deleting them."""
    archive.commit(lambda state: ManifestCommit("compact", 2, remove=paths))
