"""`kbroker archive list` and `describe`: what archives hold. For a directory of this machine no Spark is started."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from kbroker.cli.archive import text as archive_text
from kbroker.cli.common.errors import CliError, print_error
from kbroker.cli.common.options import AsJson
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.pager import paginated
from kbroker.cli.common.spark_options import Jars, Master, SparkConf, pipeline_errors, spark_session_for

if TYPE_CHECKING:
    from kbroker.pipeline.storage.storage import Storage

Directory = Annotated[str, typer.Argument(metavar="DIR", show_default=False)]
TopicNames = Annotated[list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this; repeat for more.")]

_NEEDS_SPARK = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*:/", re.IGNORECASE)


@paginated
def list_archives(
    directories: Annotated[list[str], typer.Argument(metavar="DIR...", show_default=False)],
    as_json: AsJson = False,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """List the topics of archives: rows, files, offsets, times. DIR is an archive, or a directory that holds archives.

    Sizes are those of the files. Offsets are those that the archive covers: one that had no record, such as a
    transaction's marker, has no row. Lost are offsets that were gone before they could be archived.
    """
    from kbroker.pipeline.archive import report
    from kbroker.pipeline.archive.archive import Archive
    from kbroker.pipeline.errors import PipelineError

    told, failed = [], False
    with storages(directories, master, jars, conf) as storage_of:
        for storage in (one for directory in directories for one in _archives(storage_of, directory)):
            try:
                state = Archive.open(storage).state()
            except PipelineError as error:
                print_error(str(error))
                failed = True
                continue
            topics = report.topics(state)
            told.append(archive_text.archive_json(storage.root, state, topics))
            if not as_json:
                archive_text.print_archive(storage.root, state, topics)
    if as_json:
        print_json(told)
    if failed:
        raise typer.Exit(1)


@paginated
def describe(
    directory: Directory,
    topic: TopicNames = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="Show each partition.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Show each file.")] = False,
    groups: Annotated[bool, typer.Option("--groups", help="Show the groups' offsets that were archived.")] = False,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE.png", help="Draw records and bytes over time into this file.")
    ] = None,
    as_json: AsJson = False,
    master: Master = None,
    jars: Jars = None,
    conf: SparkConf = None,
) -> None:
    """Show what an archive holds: its topics with offsets and times, gaps with their reasons, configs, groups.

    A plot is drawn from the manifest: the rows of one file are spread evenly over the time that they span.
    """
    from kbroker.pipeline.archive import report
    from kbroker.pipeline.archive.archive import Archive

    wanted = topic or ()
    with storages([directory], master, jars, conf) as storage_of:
        archive = Archive.open(storage_of(directory))
        state = archive.state()
        topics = report.topics(state, wanted)
        beside = archive_text.Beside(archive.leftovers(), archive.foreign())
        if plot is not None:
            report.draw(state, plot, f"{archive.storage.root}: {archive_text.in_short(topics)}", wanted)
    show = archive_text.Show(partitions, files, groups)
    if as_json:
        print_json(archive_text.description_json(archive.storage.root, state, topics, beside, show))
    else:
        archive_text.print_description(archive.storage.root, state, topics, beside, show)
    if plot is not None:
        print_note(f"drawn: {plot}")


@contextmanager
def storages(
    directories: Sequence[str], master: str | None, jars: str | None, conf: Sequence[str] | None
) -> "Iterator[Callable[[str], Storage]]":
    """Opens storages. A session of Spark is started where one is not a directory of this machine."""
    from kbroker.pipeline.storage.location import open_storage

    if any(map(_NEEDS_SPARK.match, directories)):
        with spark_session_for("kbroker archive", master, jars, conf) as session:
            yield lambda directory: open_storage(directory, session)
    else:
        with pipeline_errors():
            yield open_storage


def _archives(storage_of: "Callable[[str], Storage]", directory: str) -> "Iterator[Storage]":
    """The archive that the directory is, or else those in it. CliError where there is none."""
    from kbroker.pipeline.archive.manifest import file_format as manifest

    storage = storage_of(directory)
    if storage.exists(manifest.DIRECTORY):
        yield storage
        return
    within = [
        entry.name
        for entry in storage.list_directory("")
        if entry.is_directory and storage.exists(f"{entry.name}/{manifest.DIRECTORY}")
    ]
    if not within:
        raise CliError(f"{directory}: no archive there, and none in it")
    for name in within:
        yield storage_of(f"{directory.rstrip('/')}/{name}")
