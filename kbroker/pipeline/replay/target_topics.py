"""The topics that a replay produces to: their configs, whether they keep old records, and their end offsets.

Times are milliseconds since 1970.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import sleep
from typing import TypeVar

from kbroker.client.admin import BROKER, EARLIEST, LATEST, TOPIC, TypedResource, describe_configs
from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import BrokerError
from kbroker.common import TopicPartition
from kbroker.pipeline.archive.manifest.model import ArchiveState
from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.progress import TargetStart, list_offset
from protocol.errors import ErrorCode
from protocol.messages.k22_transactions import InitProducerIdRequest, InitProducerIdResponse

RESOURCE_NAMES = {TOPIC: "topic", BROKER: "broker"}
TIMESTAMP_TYPE = "message.timestamp.type"
# The topic configs that affect replayed records.
TOPIC_CONFIGS = (
    TIMESTAMP_TYPE,
    "message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms",
    "max.message.bytes",
    "retention.ms",
    "cleanup.policy",
)
# Topic configs, and the broker configs that are their defaults.
_BROKER_DEFAULTS = {
    TIMESTAMP_TYPE: "log.message.timestamp.type",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "cleanup.policy": "log.cleanup.policy",
}
# The broker configs for retention.ms with their units in milliseconds; the first that is set applies.
_BROKER_RETENTION = {"log.retention.ms": 1, "log.retention.minutes": 60_000, "log.retention.hours": 3_600_000}
MAX_ATTEMPTS = 20
RETRY_DELAY_S = 0.25

T = TypeVar("T")


@dataclass(frozen=True)
class DescribedTopic:
    """A topic that exists."""

    topic_id: str  # hexadecimal
    partitions: int
    configs: Mapping[str, str]  # TOPIC_CONFIGS with their effective values


@dataclass(frozen=True)
class NewTargetTopic:
    """A topic that the replay creates."""

    partitions: int
    configs: Mapping[str, str]


def describe_topic(cluster: ClusterClient, name: str) -> DescribedTopic | None:
    """Return a topic, None if it does not exist. Raises OSError, PipelineError."""
    try:
        topic = cluster.topic(name)
    except BrokerError as error:
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        raise PipelineError(f"cannot replay into {name}: {error}") from None
    configs = _describe_configs(cluster, TypedResource(TOPIC, name), TOPIC_CONFIGS)
    return DescribedTopic(topic.topic_id.hex(), len(topic.leaders), configs)


def broker_defaults(cluster: ClusterClient) -> dict[str, str]:
    """Return the topic configs that a new topic inherits from the broker. Raises OSError, PipelineError.

    The request goes to any broker: those of a cluster are expected to have the same defaults.
    """
    node, _ = cluster.any_node()
    names = [*_BROKER_DEFAULTS.values(), *_BROKER_RETENTION]
    return as_topic_configs(_describe_configs(cluster, TypedResource(BROKER, str(node)), names, node))


def as_topic_configs(broker_configs: Mapping[str, str]) -> dict[str, str]:
    """Convert a broker's configs to the topic configs whose defaults they are. Configs without a value are omitted."""
    configs = {name: broker_configs[source] for name, source in _BROKER_DEFAULTS.items() if source in broker_configs}
    for name, unit_ms in _BROKER_RETENTION.items():
        if name in broker_configs:
            return {**configs, "retention.ms": str(max(-1, int(broker_configs[name]) * unit_ms))}
    return configs


def _describe_configs(
    cluster: ClusterClient, resource: TypedResource, names: Sequence[str], broker: int | None = None
) -> dict[str, str]:
    [described] = describe_configs(cluster, [resource], names, broker=broker)
    if described.error_code:
        subject = f"configs of {RESOURCE_NAMES[resource.type]} {resource.name}"
        raise PipelineError(str(BrokerError(described.error_code, subject, described.error_message)))
    return {config.name: config.value for config in described.configs if config.value is not None}


def new_topic(
    state: ArchiveState, sources: Iterable[str], min_partitions: int, configs: Mapping[str, str]
) -> NewTargetTopic:
    """Return a topic like the archived topics that are replayed into it; `configs` override theirs.

    It always has CreateTime, because records must keep their timestamps.
    """
    archived = [state.topics[source] for source in sources if source in state.topics]
    archived_configs = dict(archived[0].configs) if len(archived) == 1 else {}
    partitions = max([min_partitions, *(topic.partitions for topic in archived)])
    return NewTargetTopic(partitions, {**archived_configs, TIMESTAMP_TYPE: "CreateTime", **configs})


def timestamp_errors(name: str, configs: Mapping[str, str], from_ms: int, to_ms: int, now_ms: int) -> list[str]:
    """Return why a topic would reject records with timestamps from `from_ms` to `to_ms`, or change the timestamps."""
    if configs.get(TIMESTAMP_TYPE) == "LogAppendTime":
        return [f"topic {name} replaces timestamps by the time of the append ({TIMESTAMP_TYPE}=LogAppendTime)"]
    errors = []
    max_before_ms = _integer(configs, "message.timestamp.before.max.ms")
    max_after_ms = _integer(configs, "message.timestamp.after.max.ms")
    if max_before_ms is not None and now_ms - from_ms > max_before_ms:
        errors.append(f"topic {name} rejects records as old as these (message.timestamp.before.max.ms={max_before_ms})")
    if max_after_ms is not None and to_ms - now_ms > max_after_ms:
        errors.append(
            f"topic {name} rejects records as far in the future as these "
            f"(message.timestamp.after.max.ms={max_after_ms})"
        )
    return errors


def retention_warnings(name: str, configs: Mapping[str, str], from_ms: int, now_ms: int) -> list[str]:
    """Return a warning if the topic's retention will delete records as old as `from_ms`."""
    retention_ms = _integer(configs, "retention.ms")
    if "delete" not in configs.get("cleanup.policy", "delete") or retention_ms is None:
        return []
    if not 0 <= retention_ms < now_ms - from_ms:
        return []
    return [
        f"topic {name} deletes records that are older than retention.ms={retention_ms}, and the oldest of these are: "
        f"set it to -1 to keep them (--config retention.ms=-1 if the replay creates the topic)"
    ]


def read_starts(cluster: ClusterClient, name: str, partitions: int) -> list[TargetStart]:
    """Return the current end offset of each partition of a topic. Raises OSError, BrokerError, PipelineError."""
    return [_read_start(cluster, TopicPartition(name, number)) for number in range(partitions)]


def _read_start(cluster: ClusterClient, target: TopicPartition) -> TargetStart:
    end = with_retries(lambda: list_offset(cluster, target, LATEST), cluster)
    return TargetStart(end, list_offset(cluster, target, EARLIEST) == end)


def init_producer_id(cluster: ClusterClient) -> tuple[int, int]:
    """Return a new producer id and its epoch. Raises OSError, PipelineError."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)

    def attempt() -> tuple[int, int]:
        response = cluster.any_broker().request(request, InitProducerIdResponse)
        if response.error_code:
            raise BrokerError(response.error_code, "InitProducerId")
        return response.producer_id, response.producer_epoch

    return with_retries(attempt, cluster)


def with_retries(attempt: Callable[[], T], cluster: ClusterClient) -> T:
    """Repeat an attempt on retriable error codes: a new topic may have no leaders yet.

    Raises the last BrokerError as PipelineError.
    """
    for attempts_left in reversed(range(MAX_ATTEMPTS)):
        try:
            return attempt()
        except BrokerError as error:
            if not error.code.retriable or not attempts_left:
                raise PipelineError(str(error)) from None
            cluster.reset()
            sleep(RETRY_DELAY_S)
    raise AssertionError


def max_batch_bytes(configs: Iterable[Mapping[str, str]], limit: int, overhead: int) -> int:
    """Return the batch size that all topics with these configs accept, at most `limit`."""
    allowed = [_integer(topic, "max.message.bytes") for topic in configs]
    return max(1, min([limit, *(size - overhead for size in allowed if size is not None)]))


def _integer(configs: Mapping[str, str], name: str) -> int | None:
    text = configs.get(name, "")
    return int(text) if text.lstrip("-").isdigit() else None
