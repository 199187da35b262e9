"""`kbroker archive list`: show the topics of archives."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.archive.json_output import archive_json
from kbroker.cli.archive.options import open_storages
from kbroker.cli.archive.tables import print_archive
from kbroker.cli.common.errors import CliError, print_error
from kbroker.cli.common.options import AsJson
from kbroker.cli.common.output import print_json
from kbroker.cli.common.pager import paginated
from kbroker.cli.common.spark_options import Jars, Master, SparkConf

if TYPE_CHECKING:
    from kbroker.pipeline.storage.storage import Storage


@paginated
def list_archives(
    directories: Annotated[list[str], typer.Argument(metavar="DIR...", show_default=False)],
    as_json: AsJson = False,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """List the topics of archives with rows, files, offsets and times.

    DIR is an archive, or a directory that contains archives. OFFSETS counts the archived offsets; an offset without a
    record, such as that of a transaction marker, has no row. LOST counts offsets that were deleted before they could be
    archived. SIZE is the size of the files.

    Example: kbroker archive list /data/archive
    """
    from kbroker.pipeline.archive.archive import Archive
    from kbroker.pipeline.archive.report import report_topics
    from kbroker.pipeline.errors import PipelineError

    documents, has_failed = [], False
    with open_storages(directories, master, jars, conf) as open_storage:
        for storage in (archive for directory in directories for archive in _find_archives(open_storage, directory)):
            try:
                state = Archive.open(storage).state()
            except PipelineError as error:
                print_error(str(error))
                has_failed = True
                continue
            topics = report_topics(state)
            documents.append(archive_json(storage.root, state, topics))
            if not as_json:
                print_archive(storage.root, topics)
    if as_json:
        print_json(documents)
    if has_failed:
        raise typer.Exit(1)


def _find_archives(open_storage: "Callable[[str], Storage]", directory: str) -> "Iterator[Storage]":
    """Yield the archive in a directory, or else those in its subdirectories. Raises CliError if there are none."""
    from kbroker.pipeline.archive.layout import MANIFEST

    storage = open_storage(directory)
    if storage.exists(MANIFEST):
        yield storage
        return
    subdirectories = [
        entry.name
        for entry in storage.list_directory("")
        if entry.is_directory and storage.exists(f"{entry.name}/{MANIFEST}")
    ]
    if not subdirectories:
        raise CliError(f"{directory}: is not an archive and contains none")
    for name in subdirectories:
        yield open_storage(f"{directory.rstrip('/')}/{name}")
