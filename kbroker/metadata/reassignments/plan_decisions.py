"""Decisions about a plan of reassignments: whether it is valid, its throttle as configs (KIP-73), and its next step.

Like kafka-reassign-partitions, a plan limits the rate of all brokers, and lists the throttled replicas: on the leader's
side all replicas that the moved partitions have before and afterwards, on the follower's side the added replicas, and
the removed ones, which a cancelled plan adds again.

A *step* says which moves to begin, which leaders to elect, and whether the plan has ended. The state of a move follows
from its partition alone. A cancelled plan runs in the other direction: a running move gets the original replicas as its
target, which completes it at once unless only added replicas are in sync.

A plan of the controller drops moves before they are done; a running one gets its original replicas back. A plan on
request waits for absent brokers. A plan of the controller must not: no user watches it, and no other plan can
begin until it ends.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from kbroker.common import NO_LEADER, KafkaError
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.metadata.image import MetadataImage, PartitionRegistration, TopicImage
from kbroker.metadata.reassignments.placement.cluster_layout import has_fewer_racks
from kbroker.metadata.reassignments.placement.reassignment_plan import PartitionMove
from kbroker.metadata.reassignments.stored_plan import (
    NO_THROTTLE,
    PlanOrigin,
    PlanState,
    SkipReason,
    StoredMove,
    StoredPlan,
)
from kbroker.metadata.replication.partition_change import cancel_reassignment, target_replicas
from kbroker.metadata.topics.replica_placement import Racks, invalid_assignment, validate_replicas
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

MAX_MOVES = 10_000
MAX_DESCRIPTION_CHARACTERS = 1000
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
ALL_BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
# All configs of a topic are in one node, which may have about 1 MiB.
MAX_CONFIG_BYTES = 500_000
Overrides = dict[str, str]


class RequestedPlan(NamedTuple):
    """A plan in a request. `throttle`: bytes per second for each broker, or NO_THROTTLE.

    `allow_fewer_racks`: a move may spread its partition over fewer racks than before.
    """

    description: str
    throttle: int
    max_concurrent_moves: int
    moves: Sequence[PartitionMove]
    allow_fewer_racks: bool = False


def check_plan(requested: RequestedPlan, topics: Mapping[str, TopicImage], racks: Racks) -> list[StoredMove]:
    """Validate a plan, and return its moves. `racks` has all registered brokers. Raises KafkaError with the reason."""
    if not requested.moves:
        raise _invalid("The plan has no moves.")
    if len(requested.moves) > MAX_MOVES:
        raise _invalid(f"The plan has {len(requested.moves)} moves; at most {MAX_MOVES} are possible.")
    if len(requested.description) > MAX_DESCRIPTION_CHARACTERS:
        raise _invalid(f"The description has more than {MAX_DESCRIPTION_CHARACTERS} characters.")
    if requested.max_concurrent_moves <= 0:
        raise _invalid("The number of concurrent moves must be at least 1.")
    if requested.throttle <= 0 and requested.throttle != NO_THROTTLE:
        raise _invalid("The throttle must be at least 1 byte per second, or -1 for none.")
    moves: dict[tuple[str, int], StoredMove] = {}
    for move in paced(requested.moves):
        if (move.topic, move.partition) in moves:
            raise _invalid(f"The plan has more than one move of {move}.")
        moves[move.topic, move.partition] = _check_move(move, topics, racks)
        if not requested.allow_fewer_racks:
            _check_racks(move, racks)
    return list(moves.values())


def _check_move(move: PartitionMove, topics: Mapping[str, TopicImage], racks: Racks) -> StoredMove:
    topic = topics.get(move.topic)
    if topic is None or not 0 <= move.partition < len(topic.partitions):
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The partition {move} does not exist.")
    partition = topic.partitions[move.partition]
    if partition.is_reassigning:
        raise KafkaError(ErrorCode.REASSIGNMENT_IN_PROGRESS, f"The partition {move} is already being reassigned.")
    if list(move.original) != partition.replicas:
        raise invalid_assignment(
            f"The partition {move} has the replicas {partition.replicas}, not {list(move.original)} as in the plan."
        )
    if move.target == move.original:
        raise invalid_assignment(f"The partition {move} already has the replicas {list(move.target)}.")
    try:
        validate_replicas(move.target, racks, None)
    except KafkaError as error:
        raise invalid_assignment(f"The partition {move}: {error.message}") from None
    return StoredMove(move.topic, topic.topic_id, move.partition, move.original, move.target)


def _check_racks(move: PartitionMove, racks: Racks) -> None:
    """Raise KafkaError if a move spreads its partition worse. A broker that is no longer registered has no rack."""
    before, after = ([racks.get(broker) for broker in replicas] for replicas in (move.original, move.target))
    if has_fewer_racks(before, after):
        names = (", ".join(rack or "none" for rack in replicas) for replicas in (before, after))
        raise invalid_assignment(f"The partition {move} would be in fewer racks: from {' to '.join(names)}.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def throttle_configs(plan: StoredPlan) -> dict[ConfigResource, Overrides]:
    """Return the configs of a plan with a throttle, by resource."""
    moves_by_topic: dict[str, list[StoredMove]] = {}
    for move in plan.moves:
        if set(move.original) != set(move.target):
            moves_by_topic.setdefault(move.topic, []).append(move)
    configs = {ALL_BROKERS: {LEADER_RATE: str(plan.throttle), FOLLOWER_RATE: str(plan.throttle)}}
    for topic, moves in moves_by_topic.items():
        configs[ConfigResource(ConfigResourceType.TOPIC, topic)] = {
            LEADER_REPLICAS: _replicas({move.partition: {*move.original, *move.target} for move in moves}),
            FOLLOWER_REPLICAS: _replicas({move.partition: {*move.original} ^ {*move.target} for move in moves}),
        }
    return configs


def _replicas(brokers: Mapping[int, set[int]]) -> str:
    return ",".join(f"{partition}:{broker}" for partition in sorted(brokers) for broker in sorted(brokers[partition]))


def check_throttle(plan: StoredPlan, image: MetadataImage) -> None:
    """Raise KafkaError if a config that the throttle of a plan needs is set already, or would be too large."""
    brokers = [
        ConfigResource(ConfigResourceType.BROKER, name)
        for name in image.resources_with_overrides(ConfigResourceType.BROKER)
    ]
    throttled = throttle_configs(plan)
    for resource in dict.fromkeys([*brokers, *throttled]):
        names = (LEADER_RATE, FOLLOWER_RATE) if resource.type == ConfigResourceType.BROKER else (
            LEADER_REPLICAS, FOLLOWER_REPLICAS
        )  # fmt: skip
        taken = [name for name in names if name in image.overrides(*resource)]
        if taken:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"{_name(resource)} already has {taken[0]}: remove it, or create the plan without a throttle.",
            )
        if sum(map(len, throttled.get(resource, {}).values())) > MAX_CONFIG_BYTES:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{_name(resource)} has too many partitions that move for a throttle: use several plans, or no "
                "throttle.",
            )


def with_throttle(plan: StoredPlan, image: MetadataImage) -> dict[ConfigResource, Overrides]:
    """Return the new overrides of the resources that the throttle changes. Values that a user has set meanwhile stay.

    They may include topics that have been deleted.
    """
    changed = {}
    for resource, throttle in throttle_configs(plan).items():
        current = image.overrides(*resource)
        if not throttle.keys() <= current.keys():
            changed[resource] = throttle | current
    return changed


def without_throttle(plan: StoredPlan, image: MetadataImage) -> dict[ConfigResource, Overrides]:
    """Return the new overrides of the resources with configs of the throttle. Values that a user has set stay."""
    changed = {}
    for resource, throttle in throttle_configs(plan).items():
        current = image.overrides(*resource)
        left = {name: value for name, value in current.items() if throttle.get(name) != value}
        if left != current:
            changed[resource] = left
    return changed


def _name(resource: ConfigResource) -> str:
    if resource.type == ConfigResourceType.TOPIC:
        return f"The topic '{resource.name}'"
    return f"Broker {resource.name}" if resource.name else "The default of all brokers"


# Returns the partition of a move, None if it does not exist any more.
FindPartition = Callable[[StoredMove], PartitionRegistration | None]


class MoveState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"


class MoveStatus(NamedTuple):
    """`reason` is set for a move that is skipped."""

    state: MoveState
    reason: SkipReason | None = None


_PENDING, _RUNNING, _DONE = map(MoveStatus, (MoveState.PENDING, MoveState.RUNNING, MoveState.DONE))
_DELETED, _REASSIGNED, _UNREGISTERED = (
    MoveStatus(MoveState.SKIPPED, reason)
    for reason in (SkipReason.DELETED, SkipReason.REASSIGNED, SkipReason.UNREGISTERED)
)


class PlanStep(NamedTuple):
    """The writes of a step.

    `elections`: completed moves whose preferred replica can lead but does not. `dropped`: running moves that end with
    the original replicas. `skipped`: the indexes of the moves that are skipped now; complete if the plan `is_finished`.
    """

    begin: list[StoredMove]
    dropped: list[StoredMove]
    elections: list[StoredMove]
    is_finished: bool
    skipped: dict[SkipReason, tuple[int, ...]]


def move_status(
    start: Sequence[int], goal: Sequence[int], partition: PartitionRegistration | None, registered: Collection[int]
) -> MoveStatus:
    """Return the state of a move of an active plan from `start` to `goal`. `registered`: the registered brokers.

    A reassignment to `start` counts as running, too: the plan has begun it before it was cancelled.
    """
    if partition is None:
        return _DELETED
    if partition.is_reassigning:
        progress = _RUNNING if target_replicas(partition) in (list(goal), list(start)) else _REASSIGNED
    elif partition.replicas == list(goal):
        return _DONE
    else:
        # A user who has cancelled only this move may have changed the order.
        progress = _PENDING if sorted(partition.replicas) == sorted(start) else _REASSIGNED
    if progress is not _REASSIGNED and any(replica not in registered for replica in goal):
        return _UNREGISTERED
    return progress


def next_step(
    plan: StoredPlan,
    find_partition: FindPartition,
    alive: Collection[int],
    registered: Collection[int],
    away: Collection[int] = (),
) -> PlanStep:
    """Return the next step of an active plan. `alive`: the brokers that can lead and follow. `away`: see drop_reason.

    A move that waits for an absent broker does not count as running, so that it does not block the others.
    """
    turned_back: list[StoredMove] = []
    dropped: list[StoredMove] = []
    possible: list[StoredMove] = []
    elections: list[StoredMove] = []
    skipped: dict[SkipReason, list[int]] = {}
    is_finished, copying = True, 0
    for index, move in paced(enumerate(plan.moves)):
        start, goal = plan.direction(move)
        partition = find_partition(move)
        state, reason = move_status(start, goal, partition, registered)
        if partition is not None and reason is SkipReason.UNREGISTERED and _waits_forever(partition, registered):
            dropped.append(move)
            is_finished = False
            continue
        if partition is None or reason is not None:
            skipped.setdefault(reason or SkipReason.DELETED, []).append(index)
            continue
        if state is MoveState.DONE:
            if _needs_election(partition, alive):
                elections.append(move)
            continue
        drop = drop_reason(plan, move, partition, alive, away)
        if drop is not None and state is MoveState.PENDING:
            skipped.setdefault(drop, []).append(index)
            continue
        is_finished = False
        if drop is not None:
            dropped.append(move)
        elif state is MoveState.PENDING:
            if _can_begin(partition, goal, alive):
                possible.append(move)
        elif target_replicas(partition) != list(goal):
            turned_back.append(move)
        elif _is_copying(partition, alive):
            copying += 1
    begin = turned_back + possible[: max(0, plan.max_concurrent_moves - copying - len(turned_back))]
    indexes = {reason: tuple(moves) for reason, moves in skipped.items()}
    return PlanStep(begin, dropped, elections, is_finished, indexes)


def all_statuses(plan: StoredPlan, find_partition: FindPartition, registered: Collection[int]) -> list[MoveStatus]:
    """Return the state of each move, in the order of the plan."""
    if not plan.is_active:
        return _progress_at_end(plan)
    return [move_status(*plan.direction(move), find_partition(move), registered) for move in paced(plan.moves)]


def _progress_at_end(plan: StoredPlan) -> list[MoveStatus]:
    progress = [_DONE] * len(plan.moves)
    for reason, indexes in plan.skipped.items():
        for index in indexes:
            progress[index] = MoveStatus(MoveState.SKIPPED, reason)
    return progress


def _waits_forever(partition: PartitionRegistration, registered: Collection[int]) -> bool:
    """Return whether a reassignment that can be cancelled waits for a broker that is no longer registered."""
    return not set(partition.adding_replicas) <= set(registered) and not cancel_reassignment(partition).unclean


def _needs_election(partition: PartitionRegistration, alive: Collection[int]) -> bool:
    preferred = partition.replicas[0]
    return partition.leader != preferred and preferred in partition.isr and preferred in alive


def _can_begin(partition: PartitionRegistration, goal: tuple[int, ...], alive: Collection[int]) -> bool:
    """Return whether the brokers that would copy the partition are alive, and so is a replica to copy from."""
    added = set(goal) - set(partition.replicas)
    return not added or (partition.leader != NO_LEADER and added <= set(alive))


def _is_copying(partition: PartitionRegistration, alive: Collection[int]) -> bool:
    awaited = set(partition.adding_replicas) - set(partition.removing_replicas) - set(partition.isr)
    return partition.leader != NO_LEADER and awaited <= set(alive)


def drop_reason(
    plan: StoredPlan, move: StoredMove, partition: PartitionRegistration, alive: Collection[int], away: Collection[int]
) -> SkipReason | None:
    """Return why a move that is not done is dropped, None if it continues.

    `alive`: the brokers that can lead and follow. `away`: brokers that have been away long enough to be rebuilt.
    """
    if plan.origin is PlanOrigin.REQUEST:
        return None
    if plan.state is PlanState.CANCELLING:
        return SkipReason.CANCELLED
    if plan.origin is PlanOrigin.REBUILD and all(broker in alive for broker in set(move.original) - set(move.target)):
        # Its log lacks only recent records, so it is in sync again long before a new copy would be.
        return SkipReason.RETURNED
    if any(broker in away for broker in set(move.target) - set(move.original)):
        return SkipReason.AWAY
    return None
