"""The controller's decisions: what a request to create, grow or delete topics leads to. Pure; nothing is
written here.

Error codes and the order of the checks are those of Apache Kafka 4.3.1 (tests/unit/metadata/topics/test_topic_plans.py
holds a table recorded from it); a refusal is a KafkaError.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Protocol

from kbroker.common import KafkaError
from kbroker.metadata.topics.replica_placement import NO_BROKER, Racks, place_replicas
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig

MAX_NAME_LENGTH = 249
MAX_PARTITIONS_PER_REQUEST = 10_000
RESERVED_TOPIC = "__cluster_metadata"
INTERNAL_TOPICS = frozenset(("__consumer_offsets", "__transaction_state", "__share_group_state"))
ZERO_UUID = bytes(16)

_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)

_UNKNOWN_NAME = "This server does not host this topic-partition."
_UNKNOWN_ID = "This server does not host this topic ID."
_ALSO_BY_ID = "The provided topic name maps to an ID that was already supplied."

ConfigCheck = Callable[[Mapping[str, str]], None]


class ExistingTopic(Protocol):
    """What the decisions read of an existing topic (a TopicImage serves)."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> bytes: ...
    @property
    def partitions(self) -> Sequence["ExistingPartition"]: ...


class ExistingPartition(Protocol):
    @property
    def replicas(self) -> Sequence[int]: ...


@dataclass(slots=True)
class TopicSpec:
    """A topic to create. -1 takes the broker's default; `assignments` are (partition, brokers), empty for
    automatic.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
    configs: Sequence[tuple[str, str | None]] = ()


@dataclass(slots=True)
class TopicPlan:
    """A topic as it shall be: one replica list per partition, and its config overrides."""

    name: str
    replicas: list[list[int]]
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class PartitionsSpec:
    """A topic to grow to `count` partitions; `assignments` has the brokers of each new one, None for
    automatic.
    """

    name: str
    count: int
    assignments: Sequence[Sequence[int]] | None = None


@dataclass(slots=True)
class TopicRef:
    """A topic named in DeleteTopics: by name, or (version 6) by id."""

    name: str | None
    topic_id: bytes = ZERO_UUID


@dataclass(slots=True)
class TopicDeletion:
    """One line of DeleteTopics' answer; the topic is to be deleted when `error` is None."""

    name: str | None
    topic_id: bytes
    error: KafkaError | None = None


@dataclass(slots=True)
class PlanningContext:
    """What the decisions depend on beside the request."""

    topics: Mapping[str, ExistingTopic]
    racks: Racks
    random: Random
    default_partitions: int
    default_replication_factor: int
    check_configs: ConfigCheck
    # Brokers that take no new partitions, though they may be given some by name (KIP-1066).
    cordoned: frozenset[int] = frozenset()

    @property
    def open_racks(self) -> Racks:
        return {broker: rack for broker, rack in self.racks.items() if broker not in self.cordoned}


def topic_name_error(name: str) -> str | None:
    """Why this is no topic name, or None."""
    if not name:
        return "the empty string is not allowed"
    if name in (".", ".."):
        return f"'{name}' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"the length of '{name}' is longer than the max allowed length {MAX_NAME_LENGTH}"
    if not _LEGAL_NAME.fullmatch(name):
        return f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def validate_topic_name(name: str) -> None:
    fault = topic_name_error(name)
    if fault:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {fault}")


def collision_key(name: str) -> str:
    """Names with equal keys may not exist together: Kafka's metric names turn '.' into '_'."""
    return name.replace(".", "_")


def duplicates(names: Iterable[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def check_request_size(specs: Iterable[TopicSpec], default_partitions: int) -> None:
    """Bounds what one request may ask for, before anything is planned."""
    total = 0
    for spec in specs:
        if spec.assignments:
            total += len(spec.assignments)
        else:
            total += default_partitions if spec.partitions == -1 else max(spec.partitions, 0)
    if total > MAX_PARTITIONS_PER_REQUEST:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")


def plan_topic(spec: TopicSpec, around: PlanningContext, colliding: Mapping[str, str]) -> TopicPlan:
    """Decides on one topic. `colliding` maps collision keys of the existing topics to a topic that has it."""
    if spec.name == RESERVED_TOPIC:
        raise _invalid(f"Creation of internal topic {RESERVED_TOPIC} is prohibited.")
    validate_topic_name(spec.name)
    if spec.name in around.topics:
        raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{spec.name}' already exists.")
    other = colliding.get(collision_key(spec.name))
    if other is not None:
        raise KafkaError(
            ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic '{spec.name}' collides with existing topic: {other}"
        )
    configs = _overrides(spec.configs)
    around.check_configs(configs)
    if spec.assignments:
        return TopicPlan(spec.name, _manual(spec, around.racks), configs)
    return TopicPlan(spec.name, _automatic(spec, around), configs)


def _overrides(configs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    nulls = [name for name, value in configs if value is None]
    if nulls:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {','.join(nulls)}")
    return {name: value for name, value in configs if value is not None}


def _automatic(spec: TopicSpec, around: PlanningContext) -> list[list[int]]:
    if spec.replication_factor < -1 or spec.replication_factor == 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if spec.partitions < -1 or spec.partitions == 0:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    count = around.default_partitions if spec.partitions == -1 else spec.partitions
    factor = around.default_replication_factor if spec.replication_factor == -1 else spec.replication_factor
    return place_replicas(count, factor, around.open_racks, around.random)


def _manual(spec: TopicSpec, racks: Racks) -> list[list[int]]:
    for value, what in ((spec.replication_factor, "replication factor"), (spec.partitions, "numPartitions")):
        if value != -1:
            raise _invalid(f"A manual partition assignment was specified, but {what} was not set to -1.")
    assigned: dict[int, list[int]] = {}
    for index, brokers in spec.assignments:
        if index in assigned:
            raise _bad_assignment(f"Found multiple manual partition assignments for partition {index}")
        factor = len(next(iter(assigned.values()))) if assigned else None
        check_assignment(brokers, racks, factor)
        assigned[index] = list(brokers)
    if sorted(assigned) != list(range(len(assigned))):
        raise _bad_assignment("partitions should be a consecutive 0-based integer sequence")
    return [assigned[index] for index in range(len(assigned))]


def check_assignment(brokers: Sequence[int], racks: Racks, factor: int | None) -> None:
    """One partition's replica list as a client gave it; `factor` is what its length must be, None for any."""
    if not brokers:
        raise _bad_assignment("The manual partition assignment includes an empty replica list.")
    previous = None
    for broker in sorted(brokers):
        if broker not in racks:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {broker}, but no such broker is registered."
            )
        if broker == previous:
            raise _bad_assignment(f"The manual partition assignment includes the broker {broker} more than once.")
        previous = broker
    if factor is not None and len(brokers) != factor:
        raise _bad_assignment(
            f"The manual partition assignment includes a partition with {len(brokers)} replica(s), "
            f"but this is not consistent with previous partitions, which have {factor} replica(s)."
        )


def _bad_assignment(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def plan_partitions(
    spec: PartitionsSpec, around: PlanningContext, room: int = MAX_PARTITIONS_PER_REQUEST
) -> list[list[int]]:
    """The replica lists of the partitions to add.

    `room` is what the request may still add. Kafka 4.3.1 answers UNKNOWN_SERVER_ERROR beyond it; here it is the
    POLICY_VIOLATION that CreateTopics has for the same.
    """
    topic = around.topics.get(spec.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    current = len(topic.partitions)
    if spec.count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s).")
    if spec.count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"The topic {spec.name} currently has {current} partition(s); {spec.count} would not be an increase.",
        )
    added = spec.count - current
    if added > room:
        raise KafkaError(ErrorCode.POLICY_VIOLATION, "Excessively large number of partitions per request.")
    factor = len(topic.partitions[0].replicas)
    if spec.assignments is None:
        if not around.open_racks:
            raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, NO_BROKER)
        return place_replicas(added, factor, around.open_racks, around.random)
    if len(spec.assignments) != added:
        raise _bad_assignment(
            f"Attempted to add {added} additional partition(s), "
            f"but only {len(spec.assignments)} assignment(s) were specified."
        )
    for brokers in spec.assignments:
        check_assignment(brokers, around.racks, factor)
    return [list(brokers) for brokers in spec.assignments]


def plan_deletions(
    refs: Sequence[TopicRef], topics: Mapping[str, ExistingTopic], by_id: Mapping[bytes, ExistingTopic]
) -> list[TopicDeletion]:
    """Resolves the topics of a DeleteTopics request; a topic that is named twice in any way is refused, not
    deleted.
    """
    plain = [ref for ref in refs if (ref.name is None) != (ref.topic_id == ZERO_UUID)]
    answers = [_malformed(ref) for ref in refs if (ref.name is None) == (ref.topic_id == ZERO_UUID)]
    names = [ref.name for ref in plain if ref.name is not None]
    ids = [ref.topic_id for ref in plain if ref.name is None]
    for name in dict.fromkeys(names):
        answers.append(_deletion_by_name(name, names.count(name), ids, topics))
    for topic_id in dict.fromkeys(ids):
        if ids.count(topic_id) > 1:
            answers.append(TopicDeletion(None, topic_id, _invalid("Duplicate topic id.")))
        elif topic_id not in by_id:
            answers.append(TopicDeletion(None, topic_id, KafkaError(ErrorCode.UNKNOWN_TOPIC_ID, _UNKNOWN_ID)))
        else:
            _add_deletion_by_id(by_id[topic_id], names, answers)
    return answers


def _malformed(ref: TopicRef) -> TopicDeletion:
    if ref.name is None:
        return TopicDeletion(None, ref.topic_id, _invalid("Neither topic name nor id were specified."))
    return TopicDeletion(ref.name, ref.topic_id, _invalid("You may not specify both topic name and topic id."))


def _deletion_by_name(name: str, times: int, ids: list[bytes], topics: Mapping[str, ExistingTopic]) -> TopicDeletion:
    if times > 1:
        return TopicDeletion(name, ZERO_UUID, _invalid("Duplicate topic name."))
    topic = topics.get(name)
    if topic is None:
        return TopicDeletion(name, ZERO_UUID, KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _UNKNOWN_NAME))
    if topic.topic_id in ids:
        return TopicDeletion(name, topic.topic_id, _invalid(_ALSO_BY_ID))
    return TopicDeletion(name, topic.topic_id)


def _add_deletion_by_id(topic: ExistingTopic, names: list[str], answers: list[TopicDeletion]) -> None:
    times = names.count(topic.name)
    if times == 0:
        answers.append(TopicDeletion(topic.name, topic.topic_id))
    elif times > 1:  # given once, the name has carried the refusal of both already
        answers.append(TopicDeletion(None, topic.topic_id, _invalid(_ALSO_BY_ID)))


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def internal_topic(name: str, config: "BrokerConfig") -> TopicSpec:
    """__consumer_offsets and its like, with the sizes and the configs that their coordinators need."""
    if name == "__consumer_offsets":
        return TopicSpec(
            name,
            config.offsets_topic_num_partitions,
            config.offsets_topic_replication_factor,
            configs=(
                ("cleanup.policy", "compact"),
                ("compression.type", "producer"),
                ("segment.bytes", str(config.offsets_topic_segment_bytes)),
            ),
        )
    return TopicSpec(
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
