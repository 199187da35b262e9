"""The rows of an archive as a Spark DataFrame."""

from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from kbroker.pipeline.archive import schema
from kbroker.pipeline.archive.archive import Archive
from kbroker.pipeline.archive.layout import SPARK_METADATA
from kbroker.pipeline.archive.manifest import spark_metadata
from kbroker.pipeline.archive.manifest.model import ArchiveState, DataFile
from kbroker.pipeline.storage.location import without_globs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A missing or corrupt file must fail the job instead of returning fewer rows.
READ_OPTIONS = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}

# With this setting Spark does not read _spark_metadata.
_IGNORE_METADATA = "spark.sql.streaming.fileStreamSink.ignoreMetadata"
# Spark lists more paths than this in a separate job, which takes seconds for some thousands. A temporary
# _spark_metadata directory avoids that job.
_MAX_PATHS = 32


def archive_dataframe(
    spark: "SparkSession", archive: Archive, state: ArchiveState, files: Iterable[DataFile] | None = None
) -> "DataFrame":
    """Return the rows of committed files, by default of all files of the state: schema.NAMES, in no particular order.

    `_metadata.file_path` and `_metadata.file_name` can be selected as well. A file that is deleted while the DataFrame
    is in use (by compaction) fails the job. Takes 0.3 s for 2,000 files.
    """
    selected = list(state.files.values() if files is None else files)
    if not selected:
        return spark.createDataFrame([], schema.COLUMNS)
    uri = archive.storage.uri
    if len(selected) <= _MAX_PATHS or spark.conf.get(_IGNORE_METADATA, "false") == "true":
        return read_parquet(spark, uri(""), [uri(file.path) for file in selected])
    sizes = {f"{spark_metadata.encode_uri(uri(''))}/{file.path}": file.size for file in selected}
    # A local directory even for a remote archive: only the driver reads it, once, when the DataFrame is created.
    with TemporaryDirectory(prefix="kbroker-") as directory:
        log_file = Path(directory, SPARK_METADATA, "0")
        log_file.parent.mkdir()
        log_file.write_bytes(spark_metadata.encode(sizes.items(), state.time_ms))
        return read_parquet(spark, f"file://{directory}", [f"file://{directory}"])


def read_parquet(spark: "SparkSession", base: str, paths: list[str]) -> "DataFrame":
    """Return the rows of Parquet files or directories; `topic` and `date` come from the directories below `base`."""
    reader = without_globs(spark.read).schema(schema.COLUMNS).options(**READ_OPTIONS, basePath=base)
    return reader.parquet(*paths).select(*schema.NAMES)
