"""CreateTopics, CreatePartitions and DeleteTopics: plans, or the reasons why there are none; and views.

Error codes, messages and the order of the checks are those of Apache Kafka 4.4.0. The internal topics of the
coordinators have the configs that these require.

*Views* are topics without partitions of their own, from which consumers read selected records of another topic. A
source topic with views cannot be deleted, unless the same request deletes the views.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kbroker.common import KafkaError
from kbroker.config import BrokerConfig
from kbroker.config.queue_configs import DEAD_LETTER_TOPIC, RETRY_TOPIC, VIEW_OF, without_empty_view
from kbroker.config.topic_config import check_internal_topic
from kbroker.config.values import ConfigError
from kbroker.metadata.image import TopicImage
from kbroker.metadata.topics.replica_placement import (
    MAX_PARTITIONS_PER_REQUEST,
    NO_BROKER,
    PlanningContext,
    check_leader,
    invalid_assignment,
    validate_replicas,
)
from kbroker.metadata.topics.topic_names import (
    GROUP_METADATA_TOPIC,
    INTERNAL_TOPICS,
    SHARE_GROUP_STATE_TOPIC,
    ZERO_UUID,
    collision_key,
    validate_topic_name,
)
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
    without_value = [name for name, value in topic.configs if value is None]
    if without_value:
        message = f"Null value not supported for topic configs: {','.join(without_value)}"
        raise KafkaError(ErrorCode.INVALID_CONFIG, message)
    configs = without_empty_view({name: value for name, value in topic.configs if value is not None})
    context.validate_configs(configs)
    check_topic_configs(topic.name, configs)
    if VIEW_OF in configs:
        check_new_view(
            configs[VIEW_OF], context.topics, topic.partitions, topic.replication_factor, bool(topic.assignments)
        )
        return TopicPlan(topic, [], configs)
    replicas = _assigned_replicas(topic, context) if topic.assignments else _placed_replicas(topic, context)
    return TopicPlan(topic, replicas, configs)


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


def check_topic_configs(name: str, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError if the topic `name` cannot have one of these overrides, which are valid in themselves."""
    if name in INTERNAL_TOPICS:
        check_internal_topic(name, overrides)
    for config in (RETRY_TOPIC, DEAD_LETTER_TOPIC):
        other = overrides.get(config)
        if other == name:
            # A record whose last attempt has failed would start again, forever.
            raise ConfigError(f"{config} must be another topic, not '{name}' itself")
        if other in INTERNAL_TOPICS:
            raise ConfigError(f"{config} cannot be the internal topic '{other}'")


@dataclass(slots=True)
class NewPartitions:
    """A topic and its requested partition count.

    `assignments` are the replicas of each partition to add; if it is None, the controller places the replicas.
    """

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


def plan_partitions(
    new: NewPartitions, context: PlanningContext, max_new_partitions: int = MAX_PARTITIONS_PER_REQUEST
) -> list[list[int]]:
    """Return the replicas of each partition to add. Raises KafkaError.

    Retired partitions come first: they are opened again, and keep their replicas.

    `max_new_partitions` is the number of partitions that the request may still add. Beyond it the error is
    POLICY_VIOLATION, as for CreateTopics; Kafka 4.3.1 returns UNKNOWN_SERVER_ERROR.
    """
    topic = context.topics.get(new.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    current = topic.listed_partitions
    if new.count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if new.count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {new.name} currently has {current} partition(s); {new.count} would not be an increase.",
        )
    added = new.count - current
    if added > max_new_partitions:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    replication_factor = len(topic.partitions[0].replicas)
    if current < len(topic.partitions):
        if new.assignments is not None:
            raise invalid_assignment(
                f"Partitions {current} to {len(topic.partitions) - 1} still exist, because producers may send to them. "
                "They keep their replicas: add them without assignments."
            )
        added = max(new.count - len(topic.partitions), 0)
    if new.assignments is None:
        if not context.uncordoned_racks:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, NO_BROKER)
        return context.place(added, replication_factor)
    if len(new.assignments) != added:
        raise invalid_assignment(
            f"Attempted to add {added} additional partition(s), "
            f"but only {len(new.assignments)} assignment(s) were specified."
        )
    for index, replicas in enumerate(new.assignments, current):
        validate_replicas(replicas, context.racks, replication_factor)
        check_leader(index, replicas, context)
    return [list(replicas) for replicas in new.assignments]


def new_internal_topic(name: str, config: "BrokerConfig") -> NewTopic:
    """Return the topic of a coordinator with the properties in the broker's configs."""
    if name == GROUP_METADATA_TOPIC:
        return NewTopic(
            name,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(config.offsets_topic_segment_bytes)),
            ),
        )
    if name == SHARE_GROUP_STATE_TOPIC:
        # The share coordinator deletes what it does not need any more.
        return NewTopic(
            name,
            config.share_coordinator_state_topic_num_partitions,
            config.share_coordinator_state_topic_replication_factor,
            configs=(
                ("cleanup.policy", "delete"),
                ("compression.type", "producer"),
                ("min.insync.replicas", str(config.share_coordinator_state_topic_min_isr)),
                ("retention.ms", "-1"),
                ("segment.bytes", str(config.share_coordinator_state_topic_segment_bytes)),
            ),
        )
    return NewTopic(
        name,
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        configs=(
            ("cleanup.policy", "compact"),
            ("compression.type", "uncompressed"),
            ("min.insync.replicas", str(config.transaction_state_log_min_isr)),
            ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
            ("unclean.leader.election.enable", "false"),
        ),
    )


_UNKNOWN_NAME = "This server does not host this topic-partition."
_UNKNOWN_ID = "This server does not host this topic ID."
_ID_ALREADY_SUPPLIED = "The provided topic name maps to an ID that was already supplied."


@dataclass(slots=True)
class TopicNameOrId:
    """A topic in a request: by name, or by id (version 6)."""

    name: str | None
    topic_id: bytes = ZERO_UUID


@dataclass(slots=True)
class TopicDeletion:
    """One topic in the response. The topic is to be deleted if `error` is None."""

    name: str | None
    topic_id: bytes
    error: KafkaError | None = None


def plan_deletions(
    requested: Sequence[TopicNameOrId], topics: Mapping[str, TopicImage], topics_by_id: Mapping[bytes, TopicImage]
) -> list[TopicDeletion]:
    """Resolve the topics of a request. A topic that is named more than once, in any way, is not deleted."""
    deletions: list[TopicDeletion] = []
    # How often each is in the request, in order.
    names: Counter[str] = Counter()
    ids: Counter[bytes] = Counter()
    for ref in paced(requested):
        if (ref.name is None) == (ref.topic_id == ZERO_UUID):
            deletions.append(_malformed(ref))
        elif ref.name is not None:
            names[ref.name] += 1
        else:
            ids[ref.topic_id] += 1
    for name, times_named in paced(names.items()):
        deletions.append(_deletion_by_name(name, times_named, ids, topics))
    for topic_id, times_named in paced(ids.items()):
        if times_named > 1:
            deletions.append(TopicDeletion(None, topic_id, _invalid_request("Duplicate topic id.")))
        elif topic_id not in topics_by_id:
            deletions.append(TopicDeletion(None, topic_id, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, _UNKNOWN_ID)))
        else:
            _add_deletion_by_id(topics_by_id[topic_id], names, deletions)
    return deletions


def _malformed(ref: TopicNameOrId) -> TopicDeletion:
    if ref.name is None:
        return TopicDeletion(None, ref.topic_id, _invalid_request("Neither topic name nor id were specified."))
    return TopicDeletion(ref.name, ref.topic_id, _invalid_request("You may not specify both topic name and topic id."))


def _deletion_by_name(
    name: str, times_named: int, ids: Container[bytes], topics: Mapping[str, TopicImage]
) -> TopicDeletion:
    if times_named > 1:
        return TopicDeletion(name, ZERO_UUID, _invalid_request("Duplicate topic name."))
    topic = topics.get(name)
    if topic is None:
        return TopicDeletion(name, ZERO_UUID, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_NAME))
    if topic.topic_id in ids:
        return TopicDeletion(name, topic.topic_id, _invalid_request(_ID_ALREADY_SUPPLIED))
    return TopicDeletion(name, topic.topic_id)


def _add_deletion_by_id(topic: TopicImage, names: Mapping[str, int], deletions: list[TopicDeletion]) -> None:
    times_named = names.get(topic.name, 0)
    if times_named == 0:
        deletions.append(TopicDeletion(topic.name, topic.topic_id))
    elif times_named > 1:
        # If the name is in the request once, its own deletion already has the error for both.
        deletions.append(TopicDeletion(None, topic.topic_id, _invalid_request(_ID_ALREADY_SUPPLIED)))


def check_new_view(
    source_name: str, topics: Mapping[str, TopicImage], partitions: int, replication_factor: int, has_assignments: bool
) -> None:
    """Raise KafkaError if a topic with these numbers (-1: the default) cannot be a view of the source."""
    source = check_source(source_name, topics)
    if has_assignments:
        message = f"A view has the replicas of its source {source_name}."
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    count = source.listed_partitions
    if partitions not in (-1, count):
        message = f"A view has the {count} partition(s) of its source {source_name}; request -1 or {count}."
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, message)
    factor = len(source.partitions[0].replicas)
    if replication_factor not in (-1, factor):
        message = f"A view has the {factor} replica(s) of its source {source_name}; request -1 or {factor}."
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def check_source(source_name: str, topics: Mapping[str, TopicImage]) -> TopicImage:
    """Return the source of a new view. Raises KafkaError (INVALID_CONFIG)."""
    source = topics.get(source_name)
    if source is None:
        reason = "does not exist; create it first, in a request of its own"
    elif not source.partitions:
        reason = "is a view, and a view of a view is not possible"
    elif source.internal:
        reason = "is an internal topic"
    else:
        return source
    raise KafkaError(ErrorCode.INVALID_CONFIG, f"{VIEW_OF}: the topic '{source_name}' {reason}.")


def check_views_deleted(name: str, views: Collection[str], deleted: Collection[str]) -> None:
    """Raise KafkaError if a topic has views that are not deleted by the same request."""
    remaining = sorted(view for view in views if view not in deleted)
    if remaining:
        message = f"Topic '{name}' has views, which must be deleted first: {', '.join(remaining[:10])}"
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def check_not_view(topic: TopicImage | None, operation: str) -> None:
    """Raise KafkaError if the topic is a view, for an operation on its partitions."""
    if topic is not None and topic.view_of:
        message = f"Topic '{topic.name}' is a view; {operation} its source."
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)
