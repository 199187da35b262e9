"""`kbroker topics alter`: add partitions, change configs, or change the replication factor."""

from typing import Annotated

import typer

from kbroker.cli.common.client import admin_client
from kbroker.cli.common.completion import complete_topic_config_names, complete_topic_configs, complete_topics
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, Bootstrap
from kbroker.cli.common.parsing import INT16, INT32, parse_config_changes
from kbroker.cli.common.plan_options import NO_PLAN_OPTIONS, PlanOptions, with_plan_options
from kbroker.cli.configs.requests import Resource, alter_configs
from kbroker.cli.topics.remove_partitions import change_partitions, outcome_text
from kbroker.cli.topics.results import print_results

Topics = Annotated[list[str], typer.Argument(metavar="TOPIC...", show_default=False, autocompletion=complete_topics)]


@with_plan_options
def alter(
    topics: Topics,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", metavar="N", min=1, max=INT32, help="Change the number of partitions to N."),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set a config; repeatable.",
            autocompletion=complete_topic_configs,
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="NAME",
            help="Reset a config to its default; repeatable.",
            autocompletion=complete_topic_config_names,
        ),
    ] = None,
    append: Annotated[
        list[str] | None,
        typer.Option("--append", metavar="NAME=VALUE", help="Append to a config that is a list; repeatable."),
    ] = None,
    subtract: Annotated[
        list[str] | None,
        typer.Option("--subtract", metavar="NAME=VALUE", help="Remove from a config that is a list; repeatable."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option(
            "--replication-factor", "-r", metavar="N", min=1, max=INT16, help="Change the number of replicas to N."
        ),
    ] = None,
    options: PlanOptions = NO_PLAN_OPTIONS,
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
        from kbroker.cli.cluster.plans.replication_factor import alter_replication_factor

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
            print_results(results, lambda result: outcome_text(result, partitions))
