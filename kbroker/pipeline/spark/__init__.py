"""The Spark session of the pipeline.

`functions` stands for pyspark.sql.functions and imports it when one is first used: a command that does not start Spark
starts fast, and works where pyspark is not installed.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader
    from pyspark.sql import functions as functions
else:

    class _Functions:
        def __getattr__(self, name: str) -> Any:
            from pyspark.sql import functions

            return getattr(functions, name)

    functions = _Functions()


def without_globs(reader: "DataFrameReader") -> "DataFrameReader":
    """Turn off Spark's glob patterns. With them, a path that contains `*?[]{}` would name other files, or none."""
    return reader.option("__globPaths__", "false")
