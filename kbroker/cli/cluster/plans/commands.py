"""`kbroker brokers balance`, `drain`, `replace`, `execute` and `plan`."""

import os
from collections.abc import Collection, Sequence
from typing import Annotated, Any

import typer

from kbroker.cli.cluster.layout_reader import read_layout
from kbroker.cli.cluster.plans.cordon import drain_description, drained_brokers, uncordon
from kbroker.cli.cluster.plans.plan_description import PlanDescription
from kbroker.cli.cluster.plans.plan_file import read_plan_file
from kbroker.cli.cluster.plans.plan_status import is_success, plan_name, print_end, print_status, status_json
from kbroker.cli.cluster.plans.requests import PlanRequests
from kbroker.cli.cluster.plans.run_plan import now_ms, replica_sizes, run_plan
from kbroker.cli.cluster.plans.watch import PlanWatch
from kbroker.cli.common.client import admin_client, chunks
from kbroker.cli.common.completion import complete_brokers
from kbroker.cli.common.confirm import confirm
from kbroker.cli.common.errors import CliError, print_error, usage_error
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AllowFewerRacks, AsJson, Bootstrap, Yes
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.parsing import INT32
from kbroker.cli.common.partitions.list_offsets import Partition
from kbroker.cli.common.partitions.reassignments import cancel_reassignments, reassignments_if_known
from kbroker.cli.common.plan_options import NO_PLAN_OPTIONS, PlanOptions, with_plan_options
from kbroker.metadata.reassignments.placement.balance import balance as balanced
from kbroker.metadata.reassignments.placement.drain import drain as drained
from kbroker.metadata.reassignments.placement.drain import replace as replaced
from kbroker.metadata.reassignments.placement.reassignment_plan import given_moves

HOW_TO_SEE_MOVES = "to see them: kbroker topics describe; to cancel that: kbroker brokers plan --cancel"
# Partitions per request.
MAX_CANCELLED = 1000


def _broker_argument(name: str) -> Any:
    return typer.Argument(metavar=name, min=0, max=INT32, show_default=False, autocompletion=complete_brokers)


BrokerIds = Annotated[list[int], _broker_argument("ID...")]
OldBroker = Annotated[int, _broker_argument("OLD")]
NewBroker = Annotated[int, _broker_argument("NEW")]


@with_plan_options
def balance(
    options: PlanOptions = NO_PLAN_OPTIONS,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Spread replicas, leaders and bytes evenly over the brokers, for example after new ones have joined.

    No partition is spread over fewer racks than before. The plan is shown first, and must be confirmed in a terminal.
    The controller runs it, and continues after Ctrl-C.

    Example: kbroker brokers balance --throttle 50MiB
    """
    run_plan(bootstrap, "balance", balanced, options)


@with_plan_options
def drain(
    broker_ids: BrokerIds,
    undo: Annotated[bool, typer.Option("--undo", help="Let drained brokers get replicas again; move nothing.")] = False,
    allow_fewer_racks: AllowFewerRacks = False,
    options: PlanOptions = NO_PLAN_OPTIONS,
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
        _undo_drain(bootstrap, ids)
        return
    run_plan(
        bootstrap,
        drain_description(ids),
        lambda layout: drained(layout, ids, allow_fewer_racks=allow_fewer_racks),
        options,
        ids,
        allow_fewer_racks=allow_fewer_racks,
    )


def _undo_drain(bootstrap: str, brokers: Sequence[int]) -> None:
    with admin_client(bootstrap) as client:
        done = uncordon(client, brokers)
    for broker in done:
        print(f"broker {broker}: accepts replicas again")
    if len(done) < len(brokers):
        raise typer.Exit(1)


@with_plan_options
def replace(
    old: OldBroker,
    new: NewBroker,
    allow_fewer_racks: AllowFewerRacks = False,
    options: PlanOptions = NO_PLAN_OPTIONS,
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


@with_plan_options
def execute(
    file: Annotated[str, typer.Argument(metavar="FILE", show_default=False)],
    allow_fewer_racks: AllowFewerRacks = False,
    options: PlanOptions = NO_PLAN_OPTIONS,
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
    watch: Annotated[bool, typer.Option("--watch", help="Wait for the end of the plan.")] = False,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Cancel the plan, or moves without one, and restore the former replicas."),
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
            found = _cancel(plans, found, yes)
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


def _cancel_moves(client: Any, moving: Collection[Partition], yes: bool) -> None:
    """Cancel reassignments that no plan has begun, after confirmation. Raises CliError."""
    count = count_text(len(moving), "partition")
    confirm(f"Cancel the moves of {count}, which no plan has begun?", yes)
    errors = [error for chunk in chunks(sorted(moving), MAX_CANCELLED) for error in cancel_reassignments(client, chunk)]
    for error in errors:
        print_error(error)
    if errors:
        raise typer.Exit(1)
    print(f"{count}: moves cancelled")


def _cancel(plans: PlanRequests, running: PlanDescription | None, yes: bool) -> PlanDescription | None:
    """Cancel the plan that runs, after confirmation, and return it."""
    if running is None or not running.is_running:
        raise CliError("no plan is running")
    confirm(f"Cancel {plan_name(running)}?", yes)
    plans.cancel(running.plan_id)
    return plans.describe()
