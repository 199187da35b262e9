"""Archives of the tests, made without Spark: their data files hold bytes that nobody reads."""

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest.model import ArchiveState, CoveredRange, DataFile, ManifestCommit, PartitionStats
from kbroker.pipeline.archive.staging import owner
from kbroker.pipeline.storage.storage import Storage

SETTINGS = {"committed_only": False}


def file_of(path: str, first: int = 0, rows: int = 1, partitions: int = 1) -> DataFile:
    """A data file as a manifest has it, with `rows` rows of each partition from offset `first` on."""
    topic, date, _ = (part.partition("=")[2] for part in path.split("/"))
    parts = (
        PartitionStats(p, first, first + rows - 1, rows, 10 * rows, 1000, 2000, 2**63 + p) for p in range(partitions)
    )
    return DataFile(path, topic, date, len(path), "0" * 64, tuple(parts))


def new_path(writer: str = "", number: int = 0, topic: str = "t", date: str = "2024-02-29") -> str:
    return f"topic={topic}/date={date}/{owner.data_name(writer or owner.new_writer(), number)}"


def append(archive: Archive, path: str = "", rows: int = 1) -> DataFile:
    """Puts a data file there and commits it, as the next rows of partition 0."""
    path = path or new_path()
    archive.storage.create(path, path.encode())
    added: list[DataFile] = []

    def build(state: ArchiveState) -> ManifestCommit:
        start = max((span.end for spans in state.covered.values() for span in spans), default=0)
        added[:] = [file_of(path, start, rows)]
        return ManifestCommit("append", 1, add=tuple(added), covered=(CoveredRange("t", 0, start, start + rows),))

    archive.commit(build)
    return added[0]


def remove(archive: Archive, *paths: str) -> None:
    """Commits that the files are no longer in the archive, and leaves them where they are."""
    archive.commit(lambda state: ManifestCommit("compact", 2, remove=paths))


def created(storage: Storage) -> Archive:
    return Archive.open_or_create(storage, SETTINGS)
