"""`kbroker archive describe`: show what an archive contains."""

from typing import Annotated

import typer

from kbroker.cli.archive.json_output import description_json
from kbroker.cli.archive.options import Directory, TopicNames, open_storages
from kbroker.cli.archive.tables import DescriptionOptions, UncommittedFiles, format_totals, print_description
from kbroker.cli.common.options import AsJson
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.pager import paginated
from kbroker.cli.common.spark_options import Jars, Master, SparkConf


@paginated
def describe(
    directory: Directory,
    topic: TopicNames = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="Show each partition.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Show each file.")] = False,
    groups: Annotated[bool, typer.Option("--groups", help="Show the archived offsets of consumer groups.")] = False,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE.png", help="Plot records and bytes over time to this file.")
    ] = None,
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
    from kbroker.pipeline.archive.plot import plot_archive
    from kbroker.pipeline.archive.report import report_topics

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
