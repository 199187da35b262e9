"""Requests for changes of partitions: AlterPartition, ElectLeaders, AlterPartitionReassignments; balance of leaders.

Error codes, messages and the order of the checks are those of Apache Kafka 4.4.0.

*AlterPartition* (KIP-497, KIP-841, KIP-903): a leader changes the in-sync replicas of its partition. Its write health
counts, too: others take the roles of a broker that cannot write to its disk (full, read-only, no file descriptors). It
reports that itself (replica/isr/write_health_reporter.py), and the controller stores it in its registration. Then the
broker

- leads a partition only if no better replica is in sync or eligible (`elect_leader` in partition_change.py),
- leaves the in-sync replicas where a better one is in sync (`give_up_replica`), and
- does not join them (`may_join`).

So acks=all neither waits for it, nor for replica.lag.time.max.ms. Its log is intact: where fewer replicas than
min.insync.replicas remain in sync, it is an eligible leader replica (KIP-966), as it has all committed records. If all
in-sync replicas fail, nothing changes: they stay in sync, and the leader refuses appends until it can write.

A broker that can write again is on probation for some time, in which it gets roles back only where writes would stop
without it. So space that comes and goes moves no leaders to and fro.

*ElectLeaders* (KIP-460) and the balance of leaders are elections although nothing has failed.

*AlterPartitionReassignments* (KIP-455): a partition moves to other brokers, or its reassignment is cancelled.
"""

from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from kbroker.common import NO_LEADER, KafkaError
from kbroker.config import BrokerConfig
from kbroker.config.config_def import ConfigResource, ConfigResourceType
from kbroker.metadata.image import KnownBroker, MetadataImage, PartitionRegistration, WriteHealth
from kbroker.metadata.replication.partition_change import (
    Assignment,
    Election,
    TopicRules,
    begin_reassignment,
    cancel_reassignment,
    change_partition,
    target_replicas,
)
from kbroker.metadata.topics.replica_placement import Racks, invalid_assignment, validate_replicas
from protocol.errors import ErrorCode

ANY_EPOCH = -1


@dataclass(slots=True)
class RequestedIsr:
    """The ISR that a leader requests, as (broker id, broker epoch), and the state on which it is based."""

    leader_epoch: int
    partition_epoch: int
    isr: Sequence[tuple[int, int]]


def alter_partition(
    partition: PartitionRegistration,
    leader: int,
    proposal: RequestedIsr,
    known: Mapping[int, KnownBroker],
    is_acceptable: Callable[[int], bool],
    rules: TopicRules,
) -> PartitionRegistration | ErrorCode:
    """Return the partition with the proposed ISR, or an error code. `leader` is the broker that sent the proposal.

    The checks are in Kafka's order, since the leader acts on the code: after NOT_CONTROLLER it retries elsewhere, after
    FENCED_LEADER_EPOCH and INVALID_UPDATE_VERSION it waits for its image, after INELIGIBLE_REPLICA it drops the
    proposal.
    """
    if proposal.leader_epoch > partition.leader_epoch or proposal.partition_epoch > partition.partition_epoch:
        # The leader has seen a later state, so this controller is no longer the active one.
        return ErrorCode.NOT_CONTROLLER
    if proposal.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if leader != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if proposal.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    isr = [broker_id for broker_id, _ in proposal.isr]
    if len(set(isr)) != len(isr) or not set(isr) <= set(partition.replicas) or leader not in isr:
        return ErrorCode.INVALID_REQUEST
    if any(not _is_eligible(known.get(broker_id), epoch) for broker_id, epoch in proposal.isr):
        return ErrorCode.INELIGIBLE_REPLICA

    def write_health(broker_id: int) -> WriteHealth:
        return rules.write_health.get(broker_id, WriteHealth.OK)

    joining = [broker_id for broker_id in isr if broker_id not in partition.isr]
    min_isr = min(rules.min_insync_replicas, len(partition.replicas))
    if not all(may_join(broker_id, partition.isr, write_health, min_isr) for broker_id in joining):
        return ErrorCode.INELIGIBLE_REPLICA
    # A request with the current ISR changes nothing. The leader that repeats it gets the current state.
    return change_partition(partition, is_acceptable, rules, isr=isr) or partition


def _is_eligible(broker: KnownBroker | None, epoch: int) -> bool:
    return (
        broker is not None
        and not broker.fenced
        and not broker.registration.in_controlled_shutdown
        and epoch in (ANY_EPOCH, broker.registration.epoch)
    )


def write_health_by_broker(known: Mapping[int, KnownBroker]) -> dict[int, WriteHealth]:
    """Return the write health of the brokers for which it is not OK."""
    return {
        broker_id: broker.registration.write_health
        for broker_id, broker in known.items()
        if broker.registration.write_health
    }


def may_join(
    broker_id: int, isr: Collection[int], write_health: Callable[[int], WriteHealth], min_insync_replicas: int
) -> bool:
    """Return whether its write health permits a broker to join the ISR.

    On probation only if fewer than min.insync.replicas of its members are better: then writes have stopped.
    """
    health = write_health(broker_id)
    if health is not WriteHealth.PROBATION:
        return health is WriteHealth.OK
    return sum(write_health(replica) is WriteHealth.OK for replica in isr) < min_insync_replicas


def give_up_replica(
    partition: PartitionRegistration, broker_id: int, is_acceptable: Callable[[int], bool], rules: TopicRules
) -> PartitionRegistration | None:
    """Return the partition without a failing broker in its ISR; None if it is not there, or no better one is."""
    isr = [replica for replica in partition.isr if replica != broker_id]
    if broker_id not in partition.isr:
        return None
    if not any(is_acceptable(replica) and not rules.is_failing(replica) for replica in isr):
        return None
    return change_partition(partition, is_acceptable, rules, isr=isr)


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


class RequestedReassignment(NamedTuple):
    """A partition in a request. `replicas`: the target, preferred leader first; None cancels the reassignment."""

    topic: str
    partition: int
    replicas: Sequence[int] | None


def alter_reassignment(
    name: str,
    partition: PartitionRegistration,
    target: Sequence[int] | None,
    racks: Racks,
    is_acceptable: Callable[[int], bool],
    rules: TopicRules,
    *,
    may_change_factor: bool,
) -> PartitionRegistration | None:
    """Return the partition with a new or no reassignment; None if nothing changes. Raises KafkaError.

    `name` is that of the partition in messages, topic:index. `racks` has all registered brokers. The reassignment is
    complete at once if the ISR already permits it.
    """
    if target is None:
        return _cancel(name, partition, is_acceptable, rules)
    validate_replicas(target, racks, None)
    if not may_change_factor:
        _check_factor(partition, len(target))
    assignment = begin_reassignment(partition, target)
    return change_partition(partition, is_acceptable, rules._replace(election=Election.ONLINE), assignment=assignment)


def _cancel(
    name: str, partition: PartitionRegistration, is_acceptable: Callable[[int], bool], rules: TopicRules
) -> PartitionRegistration | None:
    if not partition.is_reassigning:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    cancelled = cancel_reassignment(partition)
    if cancelled.unclean and rules.election is not Election.UNCLEAN:
        raise invalid_assignment(
            f"Unable to revert partition assignment for {name} because it would require an unclean leader election."
        )
    assignment = Assignment(cancelled.replicas, [], [])
    return change_partition(partition, is_acceptable, rules, isr=cancelled.isr, assignment=assignment)


def _check_factor(partition: PartitionRegistration, factor: int) -> None:
    """Raise KafkaError if a target changes the replication factor, which a reassignment in progress may have set."""
    current = len(target_replicas(partition))
    if factor != current:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"The replication factor is changed from {current} to {factor}"
        )


def missing_partition(topics: Container[str], topic: str, index: int) -> KafkaError:
    """Return the error for a partition that does not exist, of one of the existing `topics` or of another one."""
    missing = f"partition {topic}:{index}." if topic in topics else f"a topic named {topic}."
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find {missing}")
