"""Small archives of topics, written with the archive's own writer, and topics that are changed afterwards."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest import CoveredRange, Gap, ManifestCommit
from kbroker.pipeline.archive.staging import data_file_writer
from kbroker.pipeline.cluster_admin import ClusterAdmin
from kbroker.pipeline.storage.local import LocalStorage
from tests.compat.spark.helpers import load
from tests.compat.support import DEADLINE_S, eventually

NEW_YEAR_MS = 1_767_225_600_000
DAY_MS = 86_400_000


def records(count: int, partitions: int = 2, interval_ms: int = DAY_MS // 64) -> Iterator[dict[str, Any]]:
    """Yield records over some days, with null and empty keys and values, and headers that repeat or have no value."""
    headers: list[Any] = [None, [("a", b"1")], [("a", None), ("b", b"x")], [("a", b""), ("a", b"2")]]
    for n in range(count):
        yield {
            "key": (None, b"", f"key-{n}".encode())[n % 3],
            "value": (f"value-{n}".encode(), None, b"", b"x" * (n % 50))[n // 3 % 4],
            "headers": headers[n // 2 % 4] or [],
            "partition": n % partitions,
            "timestamp": NEW_YEAR_MS + n * interval_ms,
        }


def archive_topic(
    spark: Any,
    archive: Archive,
    bootstrap: str,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    gaps: Iterable[Gap] = (),
    change: Callable[[Any], Any] = lambda rows: rows,
) -> None:
    """Commit these offset ranges of a topic, as `archive run` does; `change` corrupts the rows first."""
    committed_only = bool(archive.state().settings.get("committed_only"))
    rows = load(
        spark.read,
        bootstrap,
        assign=json.dumps({topic: list(ranges)}),
        startingOffsets=json.dumps({topic: {str(partition): start for partition, (start, _) in ranges.items()}}),
        endingOffsets=json.dumps({topic: {str(partition): end for partition, (_, end) in ranges.items()}}),
        includeHeaders="true",
        kafka__isolation__level="read_committed" if committed_only else "read_uncommitted",
    )
    with ClusterAdmin(bootstrap) as cluster, data_file_writer(spark, archive) as writer:
        files = writer.write(change(rows))
        writer.publish()
        covered = tuple(CoveredRange(topic, partition, *offsets) for partition, offsets in ranges.items())
        topics = cluster.describe_topics([topic])
        commit = ManifestCommit("append", NEW_YEAR_MS, add=files, covered=covered, gaps=tuple(gaps), topics=topics)
        archive.commit(lambda _: commit)


def new_archive(directory: Path, **settings: Any) -> Archive:
    """Create an empty archive."""
    return Archive.open_or_create(LocalStorage(str(directory)), settings)


class ArchiveCopy:
    """An archive that is damaged repeatedly, and restored to its first content before each use."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._copy = directory.with_name(f"{directory.name}-copy")
        shutil.copytree(directory, self._copy)

    def restore(self) -> Archive:
        shutil.rmtree(self.directory)
        shutil.copytree(self._copy, self.directory)
        return Archive.open(LocalStorage(str(self.directory)))


def rewrite_file(archive: Archive, path: str, change: Callable[[Any], Any]) -> None:
    """Replace the rows of a data file with pyarrow; the file stays valid."""
    import pyarrow.parquet as parquet

    location = Path(archive.storage.root) / path
    table = parquet.ParquetFile(location).read()
    parquet.write_table(change(table), location, compression="zstd")


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    """Create a topic without retention, because the records have old timestamps."""
    with ClusterAdmin(bootstrap) as cluster:
        cluster.create_topic(topic, partitions, {"retention.ms": "-1"})


def delete_topic(bootstrap: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone from the metadata."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(DEADLINE_S)
    with ClusterAdmin(bootstrap) as cluster:
        eventually(lambda: topic not in cluster.describe_topics([topic]), f"{topic} gone")


def set_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)
