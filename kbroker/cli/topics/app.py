"""`kbroker topics`: create, list, describe, alter and delete topics."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from kbroker.cli.common.client import admin_client, chunks
from kbroker.cli.common.completion import complete_topic_configs
from kbroker.cli.common.confirm import confirm
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes
from kbroker.cli.common.output import Cell, print_json, print_table
from kbroker.cli.common.pager import paginated
from kbroker.cli.common.parsing import INT16, INT32, parse_assignments
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.topics.alter import Topics, alter
from kbroker.cli.topics.describe import describe
from kbroker.cli.topics.results import print_results
from kbroker.cli.topics.summary import topic_summary, view_sources
from protocol.errors import ErrorCode

app = typer.Typer()

NewTopics = Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False)]

MAX_TOPICS = 50  # per request, so that a progress bar can advance


@app.command("create")
def create(
    topics: NewTopics,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            metavar="N",
            min=1,
            max=INT32,
            help="Number of partitions.",
            show_default="the broker's num.partitions",
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor",
            "-r",
            metavar="N",
            min=1,
            max=INT16,
            help="Number of replicas of each partition.",
            show_default="the broker's default.replication.factor",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="NAME=VALUE",
            help="Set a topic config; repeatable.",
            autocompletion=complete_topic_configs,
        ),
    ] = None,
    view_of: Annotated[
        str | None,
        typer.Option(
            "--view-of", metavar="TOPIC", help="Create views of this topic, which have no records of their own."
        ),
    ] = None,
    view_filter: Annotated[
        str | None,
        typer.Option(
            "--filter", metavar="EXPRESSION", help='The records of a view: "TagA || TagB", "KEYS in (k1, k2)" or "*".'
        ),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Ignore topics that exist.")] = False,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Validate the request on the broker, but create nothing.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create topics.

    Example: kbroker topics create orders --partitions 6 --config retention.ms=86400000
    """
    new_topic: dict[str, Any] = {
        "num_partitions": partitions or -1,
        "replication_factor": replication_factor or -1,
        "configs": parse_assignments(config or []),
    }
    view_configs = {"kbroker.view.of": view_of, "kbroker.view.filter": view_filter}
    new_topic["configs"].update({name: value for name, value in view_configs.items() if value is not None})
    action = "could be created" if validate_only else "created"
    with admin_client(bootstrap) as client:

        def create_chunk(names: Sequence[str]) -> Any:
            return client.create_topics(
                dict.fromkeys(names, new_topic), validate_only=validate_only, raise_errors=False
            )

        results = _in_chunks("creating topics", topics, create_chunk)
    print_results(
        results,
        lambda result: f"{action} with {count_text(result['num_partitions'], 'partition')}",
        ignored={ErrorCode.TOPIC_ALREADY_EXISTS} if if_not_exists else set(),
    )


def _in_chunks(description: str, topics: Sequence[str], send: Callable[[Sequence[str]], Any]) -> list[Any]:
    """Send a request about topics in chunks, with a progress bar; returns the results by topic."""
    results = []
    with ProgressBar(description, len(topics)) as progress:
        for chunk in chunks(list(dict.fromkeys(topics)), MAX_TOPICS):
            results += send(chunk)["topics"]
            progress.advance(len(chunk))
    return results


@app.command("list")
@paginated
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Include internal topics.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List topics with their partition counts, and the sources of views."""
    with admin_client(bootstrap) as client:
        topics = [topic for topic in client.describe_topics(None) if internal or not topic["is_internal"]]
        sources = view_sources(client, [topic["name"] for topic in topics])
    topics = sorted(topics, key=lambda topic: topic["name"])
    summaries = [topic_summary(topic, sources.get(topic["name"])) for topic in topics]
    if as_json:
        print_json(summaries)
    else:
        view_of = ("view_of",) if sources else ()
        rows: list[list[Cell]] = [
            [topic["name"], topic["partitions"], topic["replication_factor"], *(topic.get(name) for name in view_of)]
            for topic in summaries
        ]
        print_table(("topic", "partitions", "replicas", *view_of), rows)


app.command("describe")(describe)


app.command("alter")(alter)


@app.command("delete")
def delete(
    topics: Topics,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Ignore topics that do not exist.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics and their records. Asks for confirmation when run in a terminal."""
    confirm(f"Delete {', '.join(topics)} with all records?", yes)
    with admin_client(bootstrap) as client:
        results = _in_chunks("deleting topics", topics, lambda chunk: client.delete_topics(chunk, raise_errors=False))
    print_results(
        results,
        lambda _: "deleted",
        ignored={ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} if if_exists else set(),
    )
