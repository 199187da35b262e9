"""Makes a plan of moves, shows it, lets the controller run it, and waits for its end.

A drain cordons its brokers first: cordoned brokers get no replicas of new partitions (KIP-1066).
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import typer

from kbroker.cli.cluster.cluster_state import measure_write_rates, read_layout
from kbroker.cli.cluster.plan_report import (
    is_success,
    plan_json,
    plan_name,
    print_awaited,
    print_end,
    print_plan,
    status_json,
)
from kbroker.cli.cluster.plan_requests import (
    DONE,
    MOVING,
    CopiedBytes,
    PlanDescription,
    PlanRequests,
    PlansNotSupported,
    copied_bytes,
    copy_rate,
)
from kbroker.cli.common.client import CLIENT_ERRORS, admin_client, client_error_text
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.options import PlanOptions
from kbroker.cli.common.output import ProgressBar, confirm, print_json, print_note
from kbroker.cli.common.stop_signals import Interrupts
from kbroker.cli.common.values import count_text, format_size
from kbroker.cli.configs.requests import Resource, alter_configs
from kbroker.client.admin import ConfigChanges, describe_cluster, describe_log_dirs
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import Partition
from kbroker.metadata.reassignments.placement.cluster_layout import ClusterLayout
from kbroker.metadata.reassignments.placement.drain import change_replication_factor
from kbroker.metadata.reassignments.placement.reassignment_plan import (
    PlanRefused,
    ReassignmentPlan,
    estimate_copies,
    plan_of,
)

CONFIG, ALL_DIRECTORIES = "cordoned.log.dirs", "*"
_DRAIN = "drain "


def drain_description(brokers: Iterable[int]) -> str:
    """Return the description of the plan that drains brokers."""
    return _DRAIN + ", ".join(map(str, brokers))


def drained_brokers(description: str) -> list[int]:
    """Return the brokers that a plan with this description drains."""
    if not description.startswith(_DRAIN):
        return []
    return [int(broker) for broker in description.removeprefix(_DRAIN).split(", ")]


def cordon(client: ClusterClient, brokers: Sequence[int]) -> list[int]:
    """Place no new replicas on brokers, and return those that are cordoned now. Prints a note on any other."""
    return _alter(client, brokers, {CONFIG: ("SET", ALL_DIRECTORIES)}, "new partitions may get replicas on it")


def uncordon(client: ClusterClient, brokers: Sequence[int]) -> list[int]:
    """Place new replicas on brokers again, and return those for which that is so. Prints a note on any other."""
    return _alter(client, brokers, {CONFIG: ("DELETE", None)}, "it stays cordoned")


def _alter(client: ClusterClient, brokers: Sequence[int], changes: ConfigChanges, consequence: str) -> list[int]:
    """Alter brokers, and return those that are altered. Others do that for a broker that is away."""
    altered = []
    for broker in brokers:
        resource = Resource("broker", str(broker))
        try:
            alter_configs(client, resource, changes)
        except (CliError, *CLIENT_ERRORS) as error:
            # Clients no longer find a broker that is fenced: CliError.
            try:
                alter_configs(client, resource, changes, at_any=True)
            except (CliError, *CLIENT_ERRORS) as other:
                # CliError: it is not known to be away.
                reason = client_error_text(error if isinstance(other, CliError) else other)
                print_note(f"broker {broker}: {consequence}: {reason}")
                continue
        altered.append(broker)
    return altered


# The controller is asked less often about a large plan, whose description is large.
EVERY_S, MOVES_PER_S = 0.5, 2000
# How often it is asked which brokers are away.
AWAY_EVERY_S = 5.0

HOW_TO_GO_ON = "to watch it: kbroker brokers plan --watch; to cancel it: kbroker brokers plan --cancel"


class PlanWatch:
    """Watches plans through an admin client. `sizes`: the bytes of one replica, by partition."""

    def __init__(self, client: ClusterClient, plans: PlanRequests, sizes: Mapping[Partition, int]) -> None:
        self._client = client
        self._plans = plans
        self._sizes = sizes

    def copied(self, plan: PlanDescription) -> CopiedBytes:
        """Return how far a plan is. Brokers that do not respond count as if they had copied nothing yet."""
        moving = plan.in_state(MOVING)
        targets = {broker for move in moving for broker in move.added}
        found = describe_log_dirs(self._client, sorted(targets), [move.key for move in moving]) if targets else {}
        return copied_bytes(plan, self._sizes, {broker: dirs.sizes for broker, dirs in found.items()})

    def wait_for_end(self, plan: PlanDescription) -> PlanDescription:
        """Return the plan when it has ended. When the user interrupts that, it continues to run."""
        current, away = plan, list[int]()
        away_at = time.monotonic() + AWAY_EVERY_S
        try:
            with Interrupts() as interrupts:
                total = self.copied(plan).total
                progress = ProgressBar(plan_name(plan), total or len(plan.moves), shows_bytes=total > 0)
                with progress:
                    while current.is_running:
                        interrupts.check()
                        time.sleep(EVERY_S + len(plan.moves) / MOVES_PER_S)
                        found = self._plans.describe()
                        if found is None or found.plan_id != plan.plan_id:
                            raise CliError(f"{plan_name(plan)} has ended, and another plan was begun since")
                        current = found
                        if current.is_running and time.monotonic() >= away_at:
                            before, away = away, current.awaited(self._away())
                            print_awaited(broker for broker in away if broker not in before)
                            away_at = time.monotonic() + AWAY_EVERY_S
                        if progress.may_be_shown:
                            progress.advance_to(self.copied(current).copied if total else current.count(DONE))
        except KeyboardInterrupt:
            print_note(f"{plan_name(plan)} continues; {HOW_TO_GO_ON}")
            raise
        return current

    def _away(self) -> list[int]:
        """Return the brokers that are away; none if no broker responds."""
        try:
            return [broker.broker_id for broker in describe_cluster(self._client).brokers if broker.is_fenced]
        except CLIENT_ERRORS:
            return []


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
    throttle = options.throttle_bytes_per_second
    with admin_client(bootstrap) as client:
        plans = PlanRequests(client)
        last = _last_plan(plans, options.dry_run)
        layout = read_layout(client)
        try:
            plan = first_moves(make_plan(layout))
        except PlanRefused as error:
            raise CliError(str(error)) from None
        watch = PlanWatch(client, plans, replica_sizes(layout))
        measured = None if last is None else copy_rate(last, replica_sizes(layout))
        # The bytes per second with which the time of the plan is estimated, None if they are not known.
        rate = min((rate for rate in (throttle, measured) if rate is not None), default=None)
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


def _run(
    client: ClusterClient,
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
    rows = map(plan.layout.brokers.__getitem__, drained)
    cordoned = cordon(client, [row.id for row in rows if row.accepts_replicas or row.is_away])
    left = created_meanwhile(plan.layout, read_layout(client), drained) if cordoned else 0
    if left:
        print_note(f"{count_text(left, 'partition')} got replicas there since this plan was made: drain once more")
    if not plan.moves:
        return None
    try:
        plan_id = plans.create(
            description,
            plan.moves,
            options.throttle_bytes_per_second,
            options.max_concurrent_moves,
            allow_fewer_racks=allow_fewer_racks,
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


def now_ms() -> int:
    return round(time.time() * 1000)


def alter_replication_factor(bootstrap: str, topics: Sequence[str], factor: int, options: PlanOptions) -> None:
    """Give all partitions of some topics this number of replicas, by a plan. Raises CliError if it is refused."""
    subject = topics[0] if len(topics) == 1 else count_text(len(topics), "topic")
    run_plan(
        bootstrap,
        f"replication factor {factor} of {subject}",
        lambda layout: change_replication_factor(layout, topics, factor),
        options,
    )
