"""Arguments of the archive commands, and the storage of the directories that they name."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.common.spark_options import pipeline_errors, spark_session_for

if TYPE_CHECKING:
    from kbroker.pipeline.storage.storage import Storage

Directory = Annotated[str, typer.Argument(metavar="DIR", show_default=False)]
TopicNames = Annotated[
    list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Include this topic only; repeatable.")
]


@contextmanager
def open_storages(
    directories: Sequence[str], master: str | None, jars: str | None, conf: Sequence[str] | None
) -> "Iterator[Callable[[str], Storage]]":
    """Return a function that opens storages. Starts a Spark session only if a directory is not local."""
    from kbroker.pipeline.storage.location import is_local, open_storage

    if all(map(is_local, directories)):
        with pipeline_errors():
            yield open_storage
    else:
        with spark_session_for("kbroker archive", master, jars, conf) as session:
            yield lambda directory: open_storage(directory, session)
