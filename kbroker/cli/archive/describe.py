"""`kbroker archive list` and `describe`: show what archives contain. Also arguments that all archive commands have."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.archive.output import (
    DescriptionOptions,
    UncommittedFiles,
    archive_json,
    description_json,
    format_totals,
    print_archive,
    print_description,
)
from kbroker.cli.common.errors import CliError, print_error
from kbroker.cli.common.options import (
    AsJson,
    Jars,
    Master,
    SparkConf,
    argument,
    option,
    pipeline_errors,
    spark_session_for,
)
from kbroker.cli.common.output import paginated, print_json, print_note

if TYPE_CHECKING:
    from kbroker.pipeline.storage.storage import Storage


Directory = Annotated[str, argument("DIR")]
TopicNames = Annotated[list[str] | None, option("--topic TOPIC", "Include this topic only; repeatable.")]


@contextmanager
def open_storages(
    directories: Sequence[str], master: str | None, jars: str | None, conf: Sequence[str] | None
) -> "Iterator[Callable[[str], Storage]]":
    """Return a function that opens storages. Starts a Spark session only if a directory is not local."""
    from kbroker.pipeline.storage import is_local, open_storage

    if all(map(is_local, directories)):
        with pipeline_errors():
            yield open_storage
    else:
        with spark_session_for("kbroker archive", master, jars, conf) as session:
            yield lambda directory: open_storage(directory, session)


@paginated
def list_archives(
    directories: Annotated[list[str], argument("DIR...")],
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


@paginated
def describe(
    directory: Directory,
    topic: TopicNames = None,
    partitions: Annotated[bool, option("--partitions", "Show each partition.")] = False,
    files: Annotated[bool, option("--files", "Show each file.")] = False,
    groups: Annotated[bool, option("--groups", "Show the archived offsets of consumer groups.")] = False,
    plot: Annotated[str | None, option("--plot FILE.png", "Plot records and bytes over time to this file.")] = None,
    as_json: AsJson = False,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """Show an archive's topics with offsets and times, its gaps with their reasons, configs and groups.

    In a plot, the rows of a file are distributed evenly over the time between its first and last timestamp.

    Example: kbroker archive describe /data/archive --partitions
    """
    from kbroker.pipeline.archive.archive import Archive
    from kbroker.pipeline.archive.leftovers import find_foreign_files, find_leftovers
    from kbroker.pipeline.archive.report import report_topics
    from kbroker.pipeline.plot import plot_archive

    with open_storages([directory], master, jars, conf) as open_storage:
        archive = Archive.open(open_storage(directory))
        state, root = archive.state(), archive.storage.root
        topics = report_topics(state, topic or ())
        uncommitted = UncommittedFiles(find_leftovers(archive), find_foreign_files(archive))
        if plot is not None:
            plot_archive(state, plot, f"{root}: {format_totals(topics)}", topic or ())
    options = DescriptionOptions(partitions, files, groups)
    if as_json:
        print_json(description_json(root, state, topics, uncommitted, options))
    else:
        print_description(root, state, topics, uncommitted, options)
    if plot is not None:
        print_note(f"plotted to {plot}")
