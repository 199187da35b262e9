"""CreateTopics: the plan of a new topic, or the reason why it cannot be created.

Error codes, messages and the order of the checks are those of Apache Kafka 4.3.1.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kbroker.common import KafkaError
from kbroker.config.tag_expression import VIEW_OF, without_empty_view
from kbroker.metadata.topics.planning_context import MAX_PARTITIONS_PER_REQUEST, PlanningContext
from kbroker.metadata.topics.replica_assignment import check_leader, invalid_assignment, validate_replicas
from kbroker.metadata.topics.topic_configs import check_topic_configs
from kbroker.metadata.topics.topic_names import collision_key, validate_topic_name
from kbroker.metadata.topics.views import check_new_view
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

RESERVED_TOPIC = "__cluster_metadata"


@dataclass(slots=True)
class NewTopic:
    """A topic in a CreateTopics request. Numbers of -1 mean the broker's defaults.

    `assignments` are (partition, replicas); if there are none, the controller places the replicas.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


@dataclass(slots=True)
class TopicPlan:
    """A topic to create: the replicas of each partition, the preferred leader first, and its config overrides.

    A view has no partitions of its own.
    """

    topic: NewTopic
    replicas: list[list[int]]
    configs: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.topic.name


def check_partition_count(topics: Iterable[NewTopic], default_partitions: int) -> None:
    """Raise KafkaError (POLICY_VIOLATION) if one request creates too many partitions."""
    total = 0
    for topic in paced(topics):
        if topic.assignments:
            total += len(topic.assignments)
        else:
            total += default_partitions if topic.partitions == -1 else max(topic.partitions, 0)
    if total > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def plan_topic(topic: NewTopic, context: PlanningContext, existing_names: Mapping[str, str]) -> TopicPlan:
    """Plan a topic. `existing_names` maps the collision keys of existing topics to their names. Raises KafkaError."""
    if topic.name == RESERVED_TOPIC:
        raise _invalid_request(f"Creation of internal topic {RESERVED_TOPIC} is prohibited.")
    validate_topic_name(topic.name)
    if topic.name in context.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    colliding_name = existing_names.get(collision_key(topic.name))
    if colliding_name is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{topic.name}' collides with existing topic: {colliding_name}"
        )
    configs = _overrides(topic.configs)
    context.validate_configs(configs)
    check_topic_configs(topic.name, configs)
    if VIEW_OF in configs:
        check_new_view(
            configs[VIEW_OF], context.topics, topic.partitions, topic.replication_factor, bool(topic.assignments)
        )
        return TopicPlan(topic, [], configs)
    replicas = _assigned_replicas(topic, context) if topic.assignments else _placed_replicas(topic, context)
    return TopicPlan(topic, replicas, configs)


def _overrides(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    if None in [value for _, value in configs]:
        without_value = [name for name, value in configs if value is None]
        message = f"Null value not supported for topic configs: {','.join(without_value)}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    return without_empty_view(dict(configs))  # type: ignore[arg-type]


def _placed_replicas(topic: NewTopic, context: PlanningContext) -> list[list[int]]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if topic.partitions < -1 or topic.partitions == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = context.default_partitions if topic.partitions == -1 else topic.partitions
    factor = context.default_replication_factor if topic.replication_factor == -1 else topic.replication_factor
    return context.place(count, factor)


def _assigned_replicas(topic: NewTopic, context: PlanningContext) -> list[list[int]]:
    for value, field_name in ((topic.replication_factor, "replication factor"), (topic.partitions, "numPartitions")):
        if value != -1:
            raise _invalid_request(f"A manual partition assignment was specified, but {field_name} was not set to -1.")
    assigned: dict[int, list[int]] = {}
    for partition, replicas in topic.assignments:
        if partition in assigned:
            raise invalid_assignment(f"Found multiple manual partition assignments for partition {partition}")
        factor = len(next(iter(assigned.values()))) if assigned else None
        validate_replicas(replicas, context.racks, factor)
        check_leader(partition, replicas, context)
        assigned[partition] = list(replicas)
    if sorted(assigned) != list(range(len(assigned))):
        raise invalid_assignment("partitions should be a consecutive 0-based integer sequence")
    return [assigned[partition] for partition in range(len(assigned))]


def _invalid_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
