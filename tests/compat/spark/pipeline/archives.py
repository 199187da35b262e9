"""Small archives made of topics through the archive's own writer, and ways to damage them."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest.model import CoveredRange, Gap, ManifestCommit
from kbroker.pipeline.archive.staging.data_file_writer import data_file_writer
from kbroker.pipeline.kafka import Cluster
from kbroker.pipeline.storage.local import LocalStorage
from tests.compat.spark.helpers import load
from tests.compat.support import eventually

NEW_YEAR_MS = 1_767_225_600_000
DAY_MS = 86_400_000


def records(count: int, partitions: int = 2, every_ms: int = DAY_MS // 64) -> Iterator[dict[str, Any]]:
    """Records over some days, with all that keys, values and headers can be: null, empty, several of one name."""
    headers: list[Any] = [None, [("a", b"1")], [("a", None), ("b", b"x")], [("a", b""), ("a", b"2")]]
    for n in range(count):
        yield {
            "key": (None, b"", f"key-{n}".encode())[n % 3],
            "value": (f"value-{n}".encode(), None, b"", b"x" * (n % 50))[n // 3 % 4],
            "headers": headers[n // 2 % 4] or [],
            "partition": n % partitions,
            "timestamp": NEW_YEAR_MS + n * every_ms,
        }


def archive_topic(
    spark: Any,
    archive: Archive,
    bootstrap: str,
    topic: str,
    spans: Mapping[int, tuple[int, int]],
    gaps: Iterable[Gap] = (),
    change: Callable[[Any], Any] = lambda rows: rows,
) -> None:
    """Commits these offsets of a topic, as `archive run` does; `change`: what goes wrong before."""
    committed_only = bool(archive.state().settings.get("committed_only"))
    starts = {str(partition): start for partition, (start, _) in spans.items()}
    ends = {str(partition): end for partition, (_, end) in spans.items()}
    rows = load(
        spark.read,
        bootstrap,
        assign=_json({topic: list(spans)}),
        startingOffsets=_json({topic: starts}),
        endingOffsets=_json({topic: ends}),
        includeHeaders="true",
        kafka__isolation__level="read_committed" if committed_only else "read_uncommitted",
    )
    with Cluster(bootstrap) as cluster, data_file_writer(spark, archive) as writer:
        add = writer.write(change(rows))
        writer.publish()
        covered = tuple(CoveredRange(topic, partition, *span) for partition, span in spans.items())
        topics = cluster.topics([topic])
        archive.commit(
            lambda _: ManifestCommit("append", NEW_YEAR_MS, add=add, covered=covered, gaps=tuple(gaps), topics=topics)
        )


def new_archive(directory: Path, **settings: Any) -> Archive:
    """An empty archive."""
    return Archive.open_or_create(LocalStorage(str(directory)), settings)


class Restored:
    """One archive that is damaged time and again: before each use it is what it was at first, at the same place."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._kept = directory.with_name(f"{directory.name}-kept")
        shutil.copytree(directory, self._kept)

    def again(self) -> Archive:
        shutil.rmtree(self.directory)
        shutil.copytree(self._kept, self.directory)
        return Archive.open(LocalStorage(str(self.directory)))


def rewritten(archive: Archive, path: str, change: Callable[[Any], Any]) -> None:
    """A data file written anew by pyarrow with other rows: valid, and of the same columns."""
    import pyarrow.parquet as parquet

    where = Path(archive.storage.root) / path
    table = parquet.ParquetFile(where).read()
    parquet.write_table(change(table), where, compression="zstd")


def create_topic(bootstrap: str, topic: str, partitions: int = 1) -> None:
    with Cluster(bootstrap) as cluster:
        cluster.create_topic(topic, partitions, {"retention.ms": "-1"})  # the records are of another year


def delete_topic(bootstrap: str, topic: str) -> None:
    """It is gone from the metadata when this returns."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(20)
    with Cluster(bootstrap) as cluster:
        eventually(lambda: topic not in cluster.topics([topic]), f"{topic} gone")


def set_config(bootstrap: str, topic: str, name: str, value: str) -> None:
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(20)


def _json(value: Any) -> str:
    return json.dumps(value)
