"""Makes a plan, shows it, lets the controller run it, and waits for its end."""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer

from kbroker.cli.cluster.layout_reader import read_layout
from kbroker.cli.cluster.plan_report import plan_json, print_plan
from kbroker.cli.cluster.plans.cordon import cordon, uncordon
from kbroker.cli.cluster.plans.plan_description import PlanDescription, copy_rate
from kbroker.cli.cluster.plans.plan_status import is_success, plan_name, print_end, status_json
from kbroker.cli.cluster.plans.requests import PlanRequests, PlansNotSupported
from kbroker.cli.cluster.plans.watch import HOW_TO_GO_ON, PlanWatch
from kbroker.cli.cluster.plans.write_rates import measure_write_rates
from kbroker.cli.common.client import admin_client
from kbroker.cli.common.confirm import confirm
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.formatting import count_text, format_size
from kbroker.cli.common.output import print_json, print_note
from kbroker.cli.common.partitions.list_offsets import Partition
from kbroker.cli.common.plan_options import PlanOptions
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterBroker, ClusterLayout
from kbroker.metadata.reassignments.placement.reassignment_plan import (
    PlanRefused,
    ReassignmentPlan,
    estimate_copies,
    plan_of,
)

ENDLESS = (
    "warning: these copies would never catch up with what producers have written in the last minute: use a higher "
    "--throttle, or none"
)
# The controller accepts no more in one plan.
MAX_MOVES = 10_000

MakePlan = Callable[[ClusterLayout], ReassignmentPlan]


def run_plan(
    bootstrap: str,
    description: str,
    make_plan: MakePlan,
    options: PlanOptions,
    drained: Sequence[int] = (),
    *,
    allow_fewer_racks: bool = False,
) -> None:
    """Make a plan for the cluster, show it, and let the controller run it. Raises CliError if it is refused.

    `drained`: the brokers that the plan drains. They get no replicas of new partitions from its beginning on.

    The exit status is 1 if the plan was cancelled or has skipped partitions.
    """
    with admin_client(bootstrap) as client:
        plans = PlanRequests(client)
        last = _last_plan(plans, options.dry_run)
        layout = read_layout(client)
        try:
            plan = first_moves(make_plan(layout))
        except PlanRefused as error:
            raise CliError(str(error)) from None
        watch = PlanWatch(client, plans, replica_sizes(layout))
        rate = assumed_rate(options.throttle, None if last is None else copy_rate(last, replica_sizes(layout)))
        estimate = None
        if rate is not None:
            written = measure_write_rates(client, plan, now_ms())
            estimate = estimate_copies(plan, rate, written, options.max_concurrent_moves)
        if not options.as_json:
            print_plan(plan, estimate)
        if estimate is not None and estimate.is_endless:
            print_note(ENDLESS)
        run = None
        if not options.dry_run and (plan.moves or drained):
            run = _run(client, plans, watch, description, plan, options, drained, allow_fewer_racks)
        if options.as_json:
            status = None if run is None else status_json(run, watch.copied(run), now_ms())
            print_json({"description": description} | plan_json(plan, estimate) | {"run": status})
    if run is not None and not run.is_running and not is_success(run):
        raise typer.Exit(1)


def _last_plan(plans: PlanRequests, dry_run: bool) -> PlanDescription | None:
    """Return the last plan. Raises CliError if another one cannot begin."""
    try:
        last = plans.describe()
    except PlansNotSupported:
        if dry_run:
            return None
        raise
    if last is not None and last.is_running and not dry_run:
        raise CliError(f"{plan_name(last)} is running; {HOW_TO_GO_ON}")
    return last


def _can_be_cordoned(broker: ClusterBroker) -> bool:
    return broker.accepts_replicas or broker.is_away


def _run(
    client: Any,
    plans: PlanRequests,
    watch: PlanWatch,
    description: str,
    plan: ReassignmentPlan,
    options: PlanOptions,
    drained: Sequence[int],
    allow_fewer_racks: bool,
) -> PlanDescription | None:
    """Begin a plan after confirmation, and return its state: when it has ended, unless the user does not wait.

    Brokers to drain are cordoned first. Returns None if there is nothing else to do.
    """
    if plan.moves:
        copied = format_size(plan.copied_bytes)
        confirm(f"Move {count_text(len(plan.moves), 'partition')}, with {copied} to copy?", options.yes)
    # The others are cordoned already, except that nobody can tell it of one that is away.
    not_cordoned = [broker for broker in map(plan.layout.brokers.__getitem__, drained) if _can_be_cordoned(broker)]
    cordoned = cordon(client, [broker.id for broker in not_cordoned])
    left = created_meanwhile(plan.layout, read_layout(client), drained) if cordoned else 0
    if left:
        print_note(f"{count_text(left, 'partition')} got replicas there since this plan was made: drain once more")
    if not plan.moves:
        return None
    try:
        plan_id = plans.create(
            description, plan.moves, options.throttle, options.max_concurrent_moves, allow_fewer_racks=allow_fewer_racks
        )
    except CliError:
        uncordon(client, cordoned)
        raise
    run = plans.describe()
    if run is None or run.plan_id != plan_id:
        raise CliError(f"plan {plan_id} has ended, and another plan was begun since")
    print_note(f"{plan_name(run)} has begun; {HOW_TO_GO_ON}")
    if options.detach:
        return run
    run = watch.wait_for_end(run)
    if not options.as_json:
        print_end(run)
    return run


def created_meanwhile(before: ClusterLayout, after: ClusterLayout, brokers: Iterable[int]) -> int:
    """Return the number of partitions that have been created since and have a replica on one of the brokers."""
    known = {(part.topic, part.partition) for part in before.partitions}
    return sum(
        (part.topic, part.partition) not in known and not set(brokers).isdisjoint(part.replicas)
        for part in after.partitions
    )


def first_moves(plan: ReassignmentPlan) -> ReassignmentPlan:
    """Return the part of a plan that the controller accepts."""
    if len(plan.moves) <= MAX_MOVES:
        return plan
    print_note(f"these are the first {MAX_MOVES} of {len(plan.moves)} moves: run the command again for the others")
    return plan_of(plan.layout, {(move.topic, move.partition): move.target for move in plan.moves[:MAX_MOVES]})


def replica_sizes(layout: ClusterLayout) -> dict[Partition, int]:
    """Return the bytes of one replica by partition."""
    return {(part.topic, part.partition): part.size_bytes for part in layout.partitions}


def assumed_rate(throttle: float | None, measured: float | None) -> float | None:
    """Return the bytes per second with which the time of a plan is estimated, None if they are not known."""
    return min((rate for rate in (throttle, measured) if rate is not None), default=None)


def now_ms() -> int:
    return round(time.time() * 1000)
