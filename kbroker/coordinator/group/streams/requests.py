"""Which StreamsGroupHeartbeat requests no group accepts. The messages are Kafka's (pure)."""

from collections.abc import Iterator, Sequence
from typing import Any

from kbroker.common import KafkaError
from kbroker.coordinator.group.modern.modern_member import JOIN_EPOCH, LEAVE_STATIC_EPOCH
from kbroker.metadata.topics.topic_names import INTERNAL_TOPICS, topic_name_error
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k88_streams_groups import HeartbeatTopology, StreamsGroupHeartbeatRequest, StreamsTopology

UNSET_TIMEOUT = -1
# What Java's String.trim removes.
_BLANKS = "".join(map(chr, range(0x21)))


def validate_request(request: StreamsGroupHeartbeatRequest) -> None:
    """Raise INVALID_REQUEST or STREAMS_INVALID_TOPOLOGY for a request that no group accepts."""
    topology, epoch = request.topology, request.member_epoch
    if topology is not None:
        _validate_names(topology)
    for name, text in (
        ("MemberId", request.member_id),
        ("GroupId", request.group_id),
        ("InstanceId", request.instance_id),
        ("RackId", request.rack_id),
    ):
        _refuse_if(text is not None and not text.strip(_BLANKS), f"{name} can't be empty.")
    tasks = {"Active": request.active_tasks, "Standby": request.standby_tasks, "Warmup": request.warmup_tasks}
    if epoch == JOIN_EPOCH:
        _refuse_if(
            request.rebalance_timeout_ms == UNSET_TIMEOUT, "RebalanceTimeoutMs must be provided in first request."
        )
        for name, owned in tasks.items():
            _refuse_if(owned != [], f"{name}Tasks must be empty when (re-)joining.")
        _refuse_if(topology is None, "Topology must be non-null when (re-)joining.")
    elif epoch == LEAVE_STATIC_EPOCH:
        _refuse_if(request.instance_id is None, "InstanceId can't be null.")
    else:
        _refuse_if(epoch < LEAVE_STATIC_EPOCH, f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    is_any_set = any(owned is not None for owned in tasks.values())
    _refuse_if(is_any_set and None in tasks.values(), "If one task-type is non-null, all must be non-null.")
    if topology is not None:
        _refuse_if(epoch != JOIN_EPOCH, "Topology can only be provided when (re-)joining.")
        _validate_topology(topology)


def _refuse_if(is_invalid: bool, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
    if is_invalid:
        raise KafkaError(code, message)


def topic_names(topology: HeartbeatTopology | StreamsTopology | None) -> Iterator[str]:
    """Return the topics of a topology, some of them several times."""
    subtopologies: Sequence[Any] = (topology and topology.subtopologies) or ()
    for each in paced(subtopologies):
        yield from each.source_topics
        yield from each.repartition_sink_topics
        yield from (topic.name for topic in (*each.repartition_source_topics, *each.state_changelog_topics))


def _validate_names(topology: HeartbeatTopology) -> None:
    names = list(dict.fromkeys(topic_names(topology)))
    internal = [name for name in names if name in INTERNAL_TOPICS]
    if internal:
        text = f"Use of Kafka internal topics {','.join(internal)} in a Kafka Streams topology is prohibited."
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)
    invalid = [name for name in paced(names) if topic_name_error(name) is not None]
    if invalid:
        text = f"Topic names {','.join(invalid)} are not valid topic names."
        raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, text)


def _validate_topology(topology: HeartbeatTopology) -> None:
    # Kafka has an internal error for a negative epoch.
    _refuse_if(topology.epoch < 0, "Topology epoch must be non-negative.")
    for each in paced(topology.subtopologies):
        _refuse_if(bool(each.source_topic_regex), "Regular expressions for source topics are not supported yet.")
        for topic in each.state_changelog_topics:
            if topic.partitions:
                text = f"Changelog topic {topic.name} must have an undefined partition count, but it is set to "
                raise KafkaError(ErrorCode.STREAMS_INVALID_TOPOLOGY, f"{text}{topic.partitions}.")
