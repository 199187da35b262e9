"""The throttle of a plan of reassignments, as configs (KIP-73).

Like kafka-reassign-partitions, a plan limits the rate of all brokers, and lists the throttled replicas: on the leader's
side all replicas that the moved partitions have before and afterwards, on the follower's side the added replicas, and
the removed ones, which a cancelled plan adds again.
"""

from collections.abc import Mapping
from typing import Protocol

from kbroker.common import KafkaError
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.metadata.reassignments.stored_plan import StoredMove, StoredPlan
from protocol.errors import ErrorCode

LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"
LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
ALL_BROKERS = ConfigResource(ConfigResourceType.BROKER, "")
# All configs of a topic are in one node, which may have about 1 MiB.
MAX_CONFIG_BYTES = 500_000

Overrides = dict[str, str]


class Configs(Protocol):
    """The config overrides of the cluster. `MetadataImage` implements it."""

    def overrides(self, resource_type: int, name: str) -> Overrides: ...

    def resources_with_overrides(self, resource_type: int) -> list[str]: ...


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


def check_throttle(plan: StoredPlan, configs: Configs) -> None:
    """Raise KafkaError if a config that the throttle of a plan needs is set already, or would be too large."""
    brokers = [
        ConfigResource(ConfigResourceType.BROKER, name)
        for name in configs.resources_with_overrides(ConfigResourceType.BROKER)
    ]
    throttled = throttle_configs(plan)
    for resource in dict.fromkeys([*brokers, *throttled]):
        names = (LEADER_RATE, FOLLOWER_RATE) if resource.type == ConfigResourceType.BROKER else (
            LEADER_REPLICAS, FOLLOWER_REPLICAS
        )  # fmt: skip
        taken = [name for name in names if name in configs.overrides(*resource)]
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


def with_throttle(plan: StoredPlan, configs: Configs) -> dict[ConfigResource, Overrides]:
    """Return the new overrides of the resources that the throttle changes. Values that a user has set meanwhile stay.

    They may include topics that have been deleted.
    """
    changed = {}
    for resource, throttle in throttle_configs(plan).items():
        current = configs.overrides(*resource)
        if not throttle.keys() <= current.keys():
            changed[resource] = throttle | current
    return changed


def without_throttle(plan: StoredPlan, configs: Configs) -> dict[ConfigResource, Overrides]:
    """Return the new overrides of the resources with configs of the throttle. Values that a user has set stay."""
    changed = {}
    for resource, throttle in throttle_configs(plan).items():
        current = configs.overrides(*resource)
        left = {name: value for name, value in current.items() if throttle.get(name) != value}
        if left != current:
            changed[resource] = left
    return changed


def _name(resource: ConfigResource) -> str:
    if resource.type == ConfigResourceType.TOPIC:
        return f"The topic '{resource.name}'"
    return f"Broker {resource.name}" if resource.name else "The default of all brokers"
