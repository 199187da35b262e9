"""The rows of an archive as a DataFrame."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.model import File, State
from kbroker.pipeline.archive.store import Archive

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Directories may have names that Spark would take for patterns, and a file that is gone is a failure, not fewer rows.
READ_OPTIONS = {"__globPaths__": "false", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}


def frame(spark: "SparkSession", archive: Archive, state: State, files: Iterable[File] | None = None) -> "DataFrame":
    """The rows of these committed files, of all files of the state without any given: schema.NAMES, in no order.

    `_metadata.file_path` and `_metadata.file_name` can be selected as well. A file that is removed while the frame is
    in use (by compaction) fails the job.
    """
    chosen = state.files.values() if files is None else files
    paths = [archive.storage.uri(file.path) for file in chosen]
    if not paths:
        return spark.createDataFrame([], schema.COLUMNS)
    return read(spark, archive.storage.uri(""), paths)


def read(spark: "SparkSession", base: str, paths: list[str]) -> "DataFrame":
    """The rows of Parquet files or directories; `topic` and `date` come from the directories below `base`."""
    reader = spark.read.schema(schema.COLUMNS).option("basePath", base)
    for name, value in READ_OPTIONS.items():
        reader = reader.option(name, value)
    return reader.parquet(*paths).select(*schema.NAMES)
