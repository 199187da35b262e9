"""The rows of an archive as a DataFrame."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.manifest import spark_view
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile
from kbroker.pipeline.storage.location import without_globs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A file that is gone is a failure, not fewer rows.
READ_OPTIONS = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}

# The session's setting by which Spark does not look at views.
_IGNORED = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
# More files than that Spark would list by a job of its own, which takes it seconds for some thousands; so it is told
# what there is by a view, as a reader of the whole archive is.
_LISTED = 32


def archive_dataframe(
    spark: "SparkSession", archive: Archive, state: ArchiveState, files: Iterable[DataFile] | None = None
) -> "DataFrame":
    """The rows of these committed files, of all files of the state without any given: schema.NAMES, in no order.

    `_metadata.file_path` and `_metadata.file_name` can be selected as well. A file that is removed while the frame is
    in use (by compaction) fails the job. Takes 0.3 s for 2,000 files.
    """
    chosen = list(state.files.values() if files is None else files)
    if not chosen:
        return spark.createDataFrame([], schema.COLUMNS)
    uri = archive.storage.uri
    if len(chosen) <= _LISTED or spark.conf.get(_IGNORED, "false") == "true":
        return read_parquet(spark, uri(""), [uri(file.path) for file in chosen])
    sizes = {f"{spark_view.encoded_uri(uri(''))}/{file.path}": file.size for file in chosen}
    # On this machine wherever the archive is: Spark's driver, which is here, reads it when the frame is made, and never
    # again.
    with TemporaryDirectory(prefix="kbroker-") as directory:
        view = Path(directory, spark_view.DIRECTORY, "0")
        view.parent.mkdir()
        view.write_bytes(spark_view.encode(sizes.items(), state.time_ms))
        return read_parquet(spark, f"file://{directory}", [f"file://{directory}"])


def read_parquet(spark: "SparkSession", base: str, paths: list[str]) -> "DataFrame":
    """The rows of Parquet files or directories; `topic` and `date` come from the directories below `base`."""
    reader = without_globs(spark.read).schema(schema.COLUMNS).option("basePath", base)
    for name, value in READ_OPTIONS.items():
        reader = reader.option(name, value)
    return reader.parquet(*paths).select(*schema.NAMES)
