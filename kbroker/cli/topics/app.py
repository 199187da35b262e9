"""`kbroker topics`: create, list, describe, alter and delete topics."""

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import typer

from kbroker.cli.common.client import admin_client
from kbroker.cli.common.completion import complete_topic_configs
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, argument, option
from kbroker.cli.common.output import Cell, ProgressBar, confirm, paginated, print_json, print_table
from kbroker.cli.common.values import INT16, INT32, count_text, parse_assignments
from kbroker.cli.topics.alter import TopicResult, Topics, alter, print_results
from kbroker.cli.topics.describe import describe, topic_summary, view_sources
from kbroker.client.admin import TopicSpec, chunks, create_topics, delete_topics, describe_topics
from protocol.errors import ErrorCode

app = typer.Typer()

Result = TypeVar("Result")
NewTopics = Annotated[list[str], argument("TOPIC...")]

MAX_TOPICS = 50  # per request, so that a progress bar can advance


@app.command("create")
def create(
    topics: NewTopics,
    partitions: Annotated[
        int | None,
        option(
            "--partitions -p N", "Number of partitions.", min=1, max=INT32, show_default="the broker's num.partitions"
        ),
    ] = None,
    replication_factor: Annotated[
        int | None,
        option(
            "--replication-factor -r N",
            "Number of replicas of each partition.",
            min=1,
            max=INT16,
            show_default="the broker's default.replication.factor",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        option("--config -c NAME=VALUE", "Set a topic config; repeatable.", complete=complete_topic_configs),
    ] = None,
    view_of: Annotated[
        str | None, option("--view-of TOPIC", "Create views of this topic, which have no records of their own.")
    ] = None,
    view_filter: Annotated[
        str | None, option("--filter EXPRESSION", 'The records of a view: "TagA || TagB", "KEYS in (k1, k2)" or "*".')
    ] = None,
    if_not_exists: Annotated[bool, option("--if-not-exists", "Ignore topics that exist.")] = False,
    validate_only: Annotated[
        bool, option("--validate-only", "Validate the request on the broker, but create nothing.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Create topics.

    Example: kbroker topics create orders --partitions 6 --config retention.ms=86400000
    """
    view_configs = {"kbroker.view.of": view_of, "kbroker.view.filter": view_filter}
    configs = parse_assignments(config or []) | {name: text for name, text in view_configs.items() if text is not None}
    new_topic = TopicSpec(partitions or -1, replication_factor or -1, configs)
    action = "could be created" if validate_only else "created"
    with admin_client(bootstrap) as client:
        results = _in_chunks(
            "creating topics",
            topics,
            lambda names: create_topics(client, dict.fromkeys(names, new_topic), validate_only=validate_only),
        )
    counts = {row.name: row.num_partitions for row in results}
    print_results(
        (TopicResult(row.name, row.error_code, row.error_message) for row in results),
        lambda result: f"{action} with {count_text(counts[result.name], 'partition')}",
        ignored={ErrorCode.TOPIC_ALREADY_EXISTS} if if_not_exists else set(),
    )


def _in_chunks(description: str, topics: Sequence[str], send: Callable[[Sequence[str]], list[Result]]) -> list[Result]:
    """Send a request about topics in chunks, with a progress bar; returns the results by topic."""
    results: list[Result] = []
    with ProgressBar(description, len(topics)) as progress:
        for chunk in chunks(list(dict.fromkeys(topics)), MAX_TOPICS):
            results += send(chunk)
            progress.advance(len(chunk))
    return results


@app.command("list")
@paginated
def list_topics(
    internal: Annotated[bool, option("--internal", "Include internal topics.")] = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """List topics with their partition counts, and the sources of views."""
    with admin_client(bootstrap) as client:
        topics = [topic for topic in describe_topics(client) if internal or not topic.is_internal]
        sources = view_sources(client, [topic.name for topic in topics])
    topics = sorted(topics, key=lambda topic: topic.name)
    summaries = [topic_summary(topic, sources.get(topic.name)) for topic in topics]
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
    if_exists: Annotated[bool, option("--if-exists", "Ignore topics that do not exist.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete topics and their records. Asks for confirmation when run in a terminal."""
    confirm(f"Delete {', '.join(topics)} with all records?", yes)
    with admin_client(bootstrap) as client:
        results = _in_chunks("deleting topics", topics, lambda names: delete_topics(client, names))
    print_results(
        (TopicResult(row.name or "", row.error_code, row.error_message) for row in results),
        lambda _: "deleted",
        ignored={ErrorCode.UNKNOWN_TOPIC_OR_PARTITION} if if_exists else set(),
    )
