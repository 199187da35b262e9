"""`kbroker topics alter`: change the number of partitions, configs, or the replication factor."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated, NamedTuple

import typer

from kbroker.cli.common.client import admin_client, request_if_known, topic_error_text
from kbroker.cli.common.completion import complete_topic_config_names, complete_topic_configs, complete_topics
from kbroker.cli.common.errors import print_error, usage_error
from kbroker.cli.common.options import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    PlanOptions,
    argument,
    option,
)
from kbroker.cli.common.values import INT16, INT32, count_text, parse_config_changes
from kbroker.cli.configs.requests import Resource, alter_configs
from kbroker.client.admin import create_partitions, describe_topics
from kbroker.client.cluster import ClusterClient
from protocol.errors import ErrorCode
from protocol.messages.k10010_remove_partitions import RemovePartitionsRequest, RemovePartitionsResponse

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
    failed = False
    for result in results:
        if not result.error_code:
            print(f"{result.name}: {success_text(result)}")
        elif result.error_code not in ignored:
            print_error(topic_error_text(result.name, result.error_code, result.error_message))
            failed = True
    if failed:
        raise typer.Exit(1)


def change_partitions(client: ClusterClient, topics: Sequence[str], partitions: int) -> list[TopicResult]:
    """Add partitions to the topics that have fewer, and remove them from the others. Returns the results in order."""
    counts = {topic.name: len(topic.partitions) for topic in describe_topics(client, topics)}
    results: dict[str, TopicResult] = {}
    for name in topics:
        removed = _remove(client, name, partitions) if counts.get(name, 0) >= partitions else None
        if removed is not None:
            results[name] = TopicResult(name, removed.error_code, removed.error_message, removed.outcome)
    # Brokers of Apache Kafka refuse the removal with a reason here.
    others = dict.fromkeys([name for name in topics if name not in results], partitions)
    for row in create_partitions(client, others) if others else ():
        results[row.name] = TopicResult(row.name, row.error_code, row.error_message)
    return [results[name] for name in topics]


def _remove(client: ClusterClient, topic: str, partitions: int) -> RemovePartitionsResponse | None:
    """Return the response to the removal of partitions, or with -1 their state; None from a broker of Apache Kafka."""
    request = RemovePartitionsRequest(topic_name=topic, partition_count=partitions)
    return request_if_known(client, request, RemovePartitionsResponse)


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


def first_closing(client: ClusterClient, topic: str) -> int | None:
    """Return the lowest partition of a topic that is closing; None if none is, or the broker is Apache Kafka."""
    response = _remove(client, topic, -1)
    return None if response is None or response.error_code or response.first_closing < 0 else response.first_closing


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

    Example: kbroker topics alter orders --partitions 12 --set retention.ms=86400000 --unset segment.ms
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
