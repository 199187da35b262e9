"""`kbroker brokers`: the brokers of a cluster with their replicas and disk use, and plans that move replicas."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any

import typer

from kbroker.cli.cluster.cluster_state import (
    broker_rows,
    print_healing,
    read_cluster,
    read_healing,
    read_layout,
    running_log_dirs,
)
from kbroker.cli.cluster.plan_report import is_success, plan_name, print_end, print_status, status_json
from kbroker.cli.cluster.plan_requests import PlanRequests
from kbroker.cli.cluster.run_plan import (
    PlanWatch,
    drain_description,
    drained_brokers,
    now_ms,
    replica_sizes,
    run_plan,
    uncordon,
)
from kbroker.cli.common.client import admin_client
from kbroker.cli.common.completion import complete_brokers
from kbroker.cli.common.errors import CliError, exception_text, print_error, usage_error
from kbroker.cli.common.options import (
    DEFAULT_BOOTSTRAP,
    AllowFewerRacks,
    AsJson,
    Bootstrap,
    PlanOptions,
    Yes,
    argument,
    option,
)
from kbroker.cli.common.output import confirm, print_json, print_note, print_table, watchable
from kbroker.cli.common.partitions import (
    PartitionHealth,
    cancel_reassignments,
    partition_health,
    reassignments_if_known,
)
from kbroker.cli.common.values import INT32, count_text, format_size
from kbroker.client.admin import LogDirs, chunks
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import Partition
from kbroker.metadata.reassignments.placement.balance import balance as balanced
from kbroker.metadata.reassignments.placement.drain import drain as drained
from kbroker.metadata.reassignments.placement.drain import replace as replaced
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove, given_moves
from protocol.messages.k60_describe_cluster import DescribeClusterResponse


def read_plan_file(path: str) -> tuple[str, list[PartitionMove]]:
    """Return the description, which may be empty, and the moves. Raises CliError if the file has no such plan."""
    try:
        with open(path, encoding="utf-8") as file:
            document: Any = json.load(file)
        moves = [
            PartitionMove(str(move["topic"]), int(move["partition"]), _ids(move["original"]), _ids(move["target"]))
            for move in document["moves"]
        ]
        description = str(document.get("description", ""))
        # A drain names its brokers there.
        drained_brokers(description)
        return description, moves
    except OSError as error:
        raise CliError(exception_text(error)) from None
    except (ValueError, KeyError, TypeError):
        # JSON that cannot be parsed is a ValueError, too.
        raise CliError(f"{path} is not a plan: it must have what --dry-run --json prints") from None


def _ids(brokers: list[Any]) -> tuple[int, ...]:
    return tuple(int(broker) for broker in brokers)


HOW_TO_SEE_MOVES = "to see them: kbroker topics describe; to cancel that: kbroker brokers plan --cancel"
# Partitions per request.
MAX_CANCELLED = 1000


def _broker_argument(name: str) -> Any:
    return typer.Argument(metavar=name, min=0, max=INT32, show_default=False, autocompletion=complete_brokers)


BrokerIds = Annotated[list[int], _broker_argument("ID...")]
OldBroker = Annotated[int, _broker_argument("OLD")]
NewBroker = Annotated[int, _broker_argument("NEW")]


def balance(options: PlanOptions, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Spread replicas, leaders and bytes evenly over the brokers, for example after new ones have joined.

    No partition is spread over fewer racks than before. The plan is shown first, and must be confirmed in a terminal.
    The controller runs it, and continues after Ctrl-C.

    Example: kbroker brokers balance --throttle 50MiB
    """
    run_plan(bootstrap, "balance", balanced, options)


def drain(
    broker_ids: BrokerIds,
    undo: Annotated[bool, option("--undo", "Let drained brokers get replicas again; move nothing.")] = False,
    allow_fewer_racks: AllowFewerRacks = False,
    *,
    options: PlanOptions,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move all replicas of brokers to the other brokers, before you stop them.

    From then on neither new partitions nor plans put replicas on drained brokers: the drain sets their config
    cordoned.log.dirs, which outlasts restarts. --undo unsets it, and so does cancelling the drain.

    Example: kbroker brokers drain 3 --dry-run

    Example: kbroker brokers drain 3 --undo
    """
    ids = list(dict.fromkeys(broker_ids))
    if undo:
        if options.used or allow_fewer_racks:
            raise usage_error("--undo has no other options")
        with admin_client(bootstrap) as client:
            done = uncordon(client, ids)
        for broker in done:
            print(f"broker {broker}: accepts replicas again")
        raise typer.Exit(1 if len(done) < len(ids) else 0)
    run_plan(
        bootstrap,
        drain_description(ids),
        lambda layout: drained(layout, ids, allow_fewer_racks=allow_fewer_racks),
        options,
        ids,
        allow_fewer_racks=allow_fewer_racks,
    )


def replace(
    old: OldBroker,
    new: NewBroker,
    allow_fewer_racks: AllowFewerRacks = False,
    *,
    options: PlanOptions,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Move all replicas of a broker, which may be down for good, to a new one.

    Example: kbroker brokers replace 3 4
    """
    run_plan(
        bootstrap,
        f"replace {old} by {new}",
        lambda layout: replaced(layout, old, new, allow_fewer_racks=allow_fewer_racks),
        options,
        allow_fewer_racks=allow_fewer_racks,
    )


def execute(
    file: Annotated[str, argument("FILE")],
    allow_fewer_racks: AllowFewerRacks = False,
    *,
    options: PlanOptions,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Run exactly the plan that --dry-run --json has shown.

    Other commands make a new plan each time, which may differ, because sizes change. This command runs the plan of
    FILE, and refuses it if the replicas of a partition have changed since. Brokers that the plan drains get no new
    replicas from then on.

    Example: kbroker brokers execute plan.json --throttle 50MiB
    """
    description, moves = read_plan_file(file)
    drained = drained_brokers(description)
    run_plan(
        bootstrap,
        description or f"execute {os.path.basename(file)}",
        lambda layout: given_moves(layout, moves, drained, allow_fewer_racks=allow_fewer_racks),
        options,
        drained,
        allow_fewer_racks=allow_fewer_racks,
    )


def plan(
    watch: Annotated[bool, option("--watch", "Wait for the end of the plan.")] = False,
    cancel: Annotated[
        bool, option("--cancel", "Cancel the plan, or moves without one, and restore the former replicas.")
    ] = False,
    yes: Yes = False,
    as_json: AsJson = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Show the plan that the controller runs, or the last one.

    --cancel asks for confirmation when run in a terminal, and waits until all replicas are restored; Ctrl-C ends only
    this wait. If no plan runs, it cancels moves that another tool has begun.

    With --watch the exit status is 1 if the plan was cancelled or has skipped partitions.

    Example: kbroker brokers plan --watch
    """
    with admin_client(bootstrap) as client:
        plans = PlanRequests(client)
        found = plans.describe()
        moving = {} if found is not None and found.is_running else reassignments_if_known(client)
        if cancel and moving:
            _cancel_moves(client, moving, yes)
            return
        if moving:
            print_note(f"{count_text(len(moving), 'partition')} moving without a plan; {HOW_TO_SEE_MOVES}")
        if cancel:
            if found is None or not found.is_running:
                raise CliError("no plan is running")
            confirm(f"Cancel {plan_name(found)}?", yes)
            plans.cancel(found.plan_id)
            found = plans.describe()
            uncordon(client, [] if found is None else drained_brokers(found.description))
        if found is None:
            if as_json:
                print_json(None)
            else:
                print_note("no plan has run yet")
            return
        layout = read_layout(client)
        watcher = PlanWatch(client, plans, replica_sizes(layout))
        if cancel or watch:
            found = watcher.wait_for_end(found)
        copied = watcher.copied(found)
    if as_json:
        print_json(status_json(found, copied, now_ms()))
    elif found.is_running:
        away = [broker.id for broker in layout.brokers.values() if broker.is_away]
        print_status(found, copied, now_ms(), found.awaited(away))
    else:
        print_end(found)
    if watch and not cancel and not is_success(found):
        raise typer.Exit(1)


def _cancel_moves(client: ClusterClient, moving: Collection[Partition], yes: bool) -> None:
    """Cancel reassignments that no plan has begun, after confirmation. Raises CliError."""
    count = count_text(len(moving), "partition")
    confirm(f"Cancel the moves of {count}, which no plan has begun?", yes)
    errors = [error for chunk in chunks(sorted(moving), MAX_CANCELLED) for error in cancel_reassignments(client, chunk)]
    for error in errors:
        print_error(error)
    if errors:
        raise typer.Exit(1)
    print(f"{count}: moves cancelled")


app = typer.Typer()

UNKNOWN_SIZE = "?"
COLUMNS = ("broker", "address", "rack", "state", "cordoned", "leads", "replicas", "out of sync", "disk use", "free")


@app.command("list")
@watchable
def list_brokers(as_json: AsJson = False, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """List brokers with their replicas and disk use.

    STATE is controller, running, fenced (probably down) or unknown (replicas are assigned to it, but it is not
    registered). A broker that is CORDONED gets no new replicas: see kbroker brokers drain. OUT_OF_SYNC is the number of
    its replicas that are not in sync. DISK_USE is the size of its replicas, and FREE the free space of the file systems
    they are on; both are ? if the broker does not respond.
    """
    with admin_client(bootstrap) as client:
        cluster, topics = read_cluster(client)
        partitions = [partition_health(row, 1) for topic in topics for row in topic.partitions]
        brokers = broker_summaries(cluster, partitions, running_log_dirs(client, cluster))
        healing = read_healing(client, brokers)
    if as_json:
        print_json(brokers)
    else:
        print_table(COLUMNS, [_cells(broker) for broker in brokers])
        print_healing(healing, now_ms())


def broker_summaries(
    cluster: DescribeClusterResponse, partitions: Sequence[PartitionHealth], directories: Mapping[int, LogDirs]
) -> list[dict[str, Any]]:
    """Return the JSON of brokers: those that are registered, and those that only partitions name."""
    return [
        {
            **row,
            "cordoned": found.is_cordoned if found else None,
            "size_bytes": found.size_bytes if found else None,
            "free_bytes": found.free_bytes if found else None,
        }
        for broker_id, row in broker_rows(cluster, partitions)
        for found in [directories.get(broker_id)]
    ]


def _cells(broker: Mapping[str, Any]) -> list[Any]:
    return [
        *(broker[name] for name in ("broker", "address", "rack", "state")),
        "yes" if broker["cordoned"] else None,
        broker["leads"],
        broker["replica_count"],
        broker["replica_count"] - broker["in_sync"],
        *(UNKNOWN_SIZE if size is None else format_size(size) for size in (broker["size_bytes"], broker["free_bytes"])),
    ]


for _command in (balance, drain, replace, execute, plan):
    app.command(_command.__name__)(_command)
