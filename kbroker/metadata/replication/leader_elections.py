"""ElectLeaders (KIP-460), and the balance of leaders: elections although nothing has failed.

Error codes and messages are those of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from kbroker.common import NO_LEADER, KafkaError
from kbroker.config.config_resource import ConfigResource, ConfigResourceType
from kbroker.metadata.image import PartitionRegistration
from kbroker.metadata.replication.partition_change import Election, TopicRules, change_partition
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig
    from kbroker.metadata.image import MetadataImage, WriteHealth

UNCLEAN_ELECTION = "unclean.leader.election.enable"
MIN_ISR = "min.insync.replicas"
ELECTION_CONFIGS = frozenset({UNCLEAN_ELECTION, MIN_ISR})


class ElectionType(IntEnum):
    """The types of a request."""

    PREFERRED = 0
    UNCLEAN = 1


_ELECTIONS = {ElectionType.PREFERRED: Election.PREFERRED, ElectionType.UNCLEAN: Election.UNCLEAN}


def parse_election_type(value: int) -> ElectionType:
    """Raises KafkaError (INVALID_REQUEST)."""
    try:
        return ElectionType(value)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown election type {value}") from None


def elect_on_request(
    partition: PartitionRegistration,
    election_type: ElectionType,
    is_acceptable: Callable[[int], bool],
    rules: TopicRules,
) -> PartitionRegistration:
    """Return the partition with the elected leader. Raises KafkaError if there is no need, or no candidate."""
    if election_type is ElectionType.PREFERRED:
        is_needed = partition.leader != partition.replicas[0]
    else:
        is_needed = partition.leader == NO_LEADER
    if not is_needed:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")
    elected = change_partition(partition, is_acceptable, rules._replace(election=_ELECTIONS[election_type]))
    if elected is not None:
        return elected
    if election_type is ElectionType.PREFERRED:
        raise KafkaError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available.")
    raise KafkaError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "Eligible topic partition leaders are not available.")


def balance_leader(
    partition: PartitionRegistration, is_acceptable: Callable[[int], bool], rules: TopicRules
) -> PartitionRegistration | None:
    """Return the partition with its preferred leader, None if it leads already, or cannot."""
    preferred = partition.replicas[0]
    if partition.leader == preferred or preferred not in partition.isr or not is_acceptable(preferred):
        return None
    if rules.write_health.get(preferred):
        return None  # it cannot write, or is on probation
    return change_partition(partition, is_acceptable, rules._replace(election=Election.PREFERRED))


def unknown_partition(topics: Container[str], topic: str, index: int) -> KafkaError:
    """Return the error for a partition that does not exist, of one of the existing `topics` or of another one."""
    missing = f"partition as {topic}-{index}" if topic in topics else f"topic as {topic}"
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such {missing}")


class NewConfigs(NamedTuple):
    """The overrides that a resource is about to have."""

    resource: ConfigResource
    overrides: Mapping[str, str]


def topic_rules(
    image: MetadataImage,
    config: BrokerConfig,
    topic_id: bytes,
    new_configs: NewConfigs | None,
    write_health: Mapping[int, WriteHealth],
) -> TopicRules:
    """Return the rules of a topic. `new_configs` replace the overrides of their resource in the image."""
    topic = image.topics_by_id.get(topic_id)
    resources = [ConfigResource(ConfigResourceType.BROKER, "")]
    if topic is not None:
        resources.append(ConfigResource(ConfigResourceType.TOPIC, topic.name))
    configs: dict[str, str] = {}
    for resource in resources:
        is_new = new_configs is not None and new_configs.resource == resource
        configs |= new_configs.overrides if new_configs is not None and is_new else image.overrides(*resource)
    unclean, min_isr = configs.get(UNCLEAN_ELECTION), configs.get(MIN_ISR)
    is_unclean = bool(config.get(UNCLEAN_ELECTION)) if unclean is None else unclean == "true"
    return TopicRules(
        Election.UNCLEAN if is_unclean else Election.ONLINE,
        int(str(config.get(MIN_ISR) if min_isr is None else min_isr)),
        write_health,
    )
