"""`kbroker topics`: create, list, describe, alter and delete topics."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated, NamedTuple, TypeVar

import typer

from kbroker.cli.common.client import admin_client, topic_error
from kbroker.cli.common.completion import complete_topic_config_names, complete_topic_configs, complete_topics
from kbroker.cli.common.deletion import DeletionOptions, DryRun
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap, PlanOptions, Yes, argument, option
from kbroker.cli.common.output import ProgressBar, confirm, print_outcomes
from kbroker.cli.common.values import INT16, INT32, count_text, parse_config_changes, parse_configs
from kbroker.cli.configs.requests import Resource, alter_configs
from kbroker.cli.topics.describe import describe, remove_partitions
from kbroker.cli.topics.list_topics import list_topics
from kbroker.client.admin import TopicSpec, chunks, create_partitions, create_topics, delete_topics, describe_topics
from kbroker.client.cluster import ClusterClient
from protocol.errors import ErrorCode

# The outcomes of RemovePartitions.
CLOSING, REOPENED = 1, 2


class TopicResult(NamedTuple):
    """The result for one topic. `outcome`: of RemovePartitions."""

    name: str
    error_code: int
    error_message: str | None
    outcome: int = 0


def print_results(
    results: Iterable[TopicResult], success_text: Callable[[TopicResult], str], ignored: Collection[ErrorCode] = ()
) -> None:
    """Print one line per topic; exits with status 1 if one of them failed."""
    print_outcomes(
        (f"{row.name}: {success_text(row)}", None)
        if not row.error_code
        else ("", topic_error(row.name, row.error_code, row.error_message))
        for row in results
        if row.error_code not in ignored
    )


def change_partitions(client: ClusterClient, topics: Sequence[str], partitions: int) -> list[TopicResult]:
    """Add partitions to the topics that have fewer, and remove them from the others. Returns the results in order."""
    counts = {topic.name: len(topic.partitions) for topic in describe_topics(client, topics)}
    results: dict[str, TopicResult] = {}
    for name in topics:
        removed = remove_partitions(client, name, partitions) if counts.get(name, 0) >= partitions else None
        if removed is not None:
            results[name] = TopicResult(name, removed.error_code, removed.error_message, removed.outcome)
    # Brokers of Apache Kafka refuse the removal with a reason here.
    others = dict.fromkeys([name for name in topics if name not in results], partitions)
    for row in create_partitions(client, others) if others else ():
        results[row.name] = TopicResult(row.name, row.error_code, row.error_message)
    return [results[name] for name in topics]


def outcome_text(outcome: int, partitions: int) -> str:
    """Return what `kbroker topics alter --partitions` has done."""
    if outcome == CLOSING:
        return (
            f"the partitions from {partitions} on are closing: new records go to the others. They are removed when "
            "retention has emptied them"
        )
    if outcome == REOPENED:
        return f"all {count_text(partitions, 'partition')} are open again"
    return f"now has {count_text(partitions, 'partition')}"


Topics = Annotated[list[str], argument("TOPIC...", complete=complete_topics)]


def alter(
    topics: Topics,
    partitions: Annotated[
        int | None, option("--partitions -p N", "Change the number of partitions to N.", min=1, max=INT32)
    ] = None,
    set_: Annotated[
        list[str] | None, option("--set NAME=VALUE", "Set a config; repeatable.", complete=complete_topic_configs)
    ] = None,
    unset: Annotated[
        list[str] | None,
        option("--unset NAME", "Reset a config to its default; repeatable.", complete=complete_topic_config_names),
    ] = None,
    append: Annotated[
        list[str] | None, option("--append NAME=VALUE", "Append to a config that is a list; repeatable.")
    ] = None,
    subtract: Annotated[
        list[str] | None, option("--subtract NAME=VALUE", "Remove from a config that is a list; repeatable.")
    ] = None,
    replication_factor: Annotated[
        int | None, option("--replication-factor -r N", "Change the number of replicas to N.", min=1, max=INT16)
    ] = None,
    *,
    options: PlanOptions,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Change the number of partitions of topics, their configs, or their replication factor.

    If N is lower than the current number of partitions, the highest ones are removed. If one of these has records, all
    are closing: new records go to the remaining partitions, until retention has emptied them. To cancel that, set the
    current number.

    Another replication factor needs a plan of moves, as kbroker brokers balance does. It is shown first, and must be
    confirmed in a terminal. The controller runs it, and continues after Ctrl-C. The options from --dry-run to --json
    are for plans only.

    Example: kbroker topics alter orders --replication-factor 3 --throttle 50MiB

    Example: kbroker topics alter orders --partitions 12 --set retention.ms=7d --unset segment.ms
    """
    changes = parse_config_changes(set_ or [], unset or [], append or [], subtract or [])
    others = bool(changes) or partitions is not None
    if not others and replication_factor is None:
        raise usage_error(
            "nothing to alter: use --partitions, --replication-factor, --set, --unset, --append or --subtract"
        )
    names = list(dict.fromkeys(topics))
    if replication_factor is not None:
        if others:
            raise usage_error("change the replication factor in a command of its own")
        # Imported only now, because a plan needs more modules than all other commands for topics.
        from kbroker.cli.cluster.run_plan import alter_replication_factor

        alter_replication_factor(bootstrap, names, replication_factor, options)
        return
    if options.used:
        raise usage_error(f"only with --replication-factor: {', '.join(options.used)}")
    with admin_client(bootstrap) as client:
        for topic in names if changes else ():
            alter_configs(client, Resource("topic", topic), changes)
            print(f"{topic}: configs altered: {', '.join(changes)}")
        if partitions is not None:
            results = change_partitions(client, names, partitions)
            print_results(results, lambda result: outcome_text(result.outcome, partitions))


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

    Example: kbroker topics create orders --partitions 6 --config retention.ms=7d
    """
    view_configs = {"kbroker.view.of": view_of, "kbroker.view.filter": view_filter}
    configs = parse_configs(config or []) | {name: text for name, text in view_configs.items() if text is not None}
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


app.command("list")(list_topics)


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


@app.command("delete-records")
def delete_records(
    topic: Annotated[str, argument("TOPIC", complete=complete_topics)],
    *,
    selection: DeletionOptions,
    dry_run: DryRun = False,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Delete records of a topic, from the beginning of each partition up to a time or an offset.

    Example: kbroker topics delete-records orders --until 7d
    """
    selection.check()
    with admin_client(bootstrap) as client:
        print(selection.delete(client, topic, dry_run=dry_run, yes=yes))
