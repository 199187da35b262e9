"""File access: local directories, and what Hadoop supports. Opens the storage at a local path or URI."""

import re
from typing import TYPE_CHECKING

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.storage.hadoop import HadoopStorage
from kbroker.pipeline.storage.local import LocalStorage
from kbroker.pipeline.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

# As in Hadoop: a colon without a slash after it belongs to a file name.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


def open_storage(location: str, spark: "SparkSession | None" = None) -> Storage:
    """Return the storage at a local path or URI without reading or creating anything.

    Every scheme except `file:` needs `spark`. Raises PipelineError if it is missing or Hadoop does not support the
    scheme.
    """
    if not location:
        raise PipelineError("the directory name is empty")
    if is_local(location):
        return LocalStorage(_local_path(location) if _SCHEME.match(location) else location)
    if spark is None:
        raise PipelineError(f"{location}: only local paths and file: URIs can be read without Spark")
    return HadoopStorage(location, spark)


def is_local(location: str) -> bool:
    """Return whether a location is a local path or a file: URI, which need no Spark session."""
    scheme = _SCHEME.match(location)
    return scheme is None or scheme[1].lower() == "file"


def _local_path(uri: str) -> str:
    """Return the path of a file: URI. Percent-encoding is not decoded, as in Hadoop."""
    path = uri.partition(":")[2]
    if not path.startswith("//"):
        return path
    host, slash, path = path[2:].partition("/")
    if host not in ("", "localhost") or not slash:
        raise PipelineError(f"{uri}: is a file: URI of another host; write file:///PATH")
    return "/" + path


def without_globs(reader: "DataFrameReader") -> "DataFrameReader":
    """Turn off Spark's glob patterns. With them, a path that contains `*?[]{}` would name other files, or none."""
    return reader.option("__globPaths__", "false")
