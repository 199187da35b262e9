"""Validation of a new plan of reassignments, and its throttle as configs (KIP-73).

Like kafka-reassign-partitions, a plan limits the rate of all brokers, and lists the throttled replicas: on the leader's
side all replicas that the moved partitions have before and afterwards, on the follower's side the added replicas, and
the removed ones, which a cancelled plan adds again.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.metadata.image import MetadataImage, TopicImage
from kbroker.metadata.reassignments.placement.cluster_layout import has_fewer_racks
from kbroker.metadata.reassignments.placement.reassignment_plan import GivenMove
from kbroker.metadata.reassignments.stored_plan import NO_THROTTLE, StoredMove, StoredPlan
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
    moves: Sequence[GivenMove]
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


def _check_move(move: GivenMove, topics: Mapping[str, TopicImage], racks: Racks) -> StoredMove:
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


def _check_racks(move: GivenMove, racks: Racks) -> None:
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
