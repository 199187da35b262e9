"""What the command line and the data pipeline ask of a cluster: topics, configs, offsets.

Functions raise BrokerUnreachable, and BrokerError for the first error of a response unless they return errors.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import monotonic, sleep
from typing import NamedTuple, TypeVar

from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import LEADER_ERRORS, BrokerError, Partition, PartitionKey, check, partition_text
from kbroker.client.retries import RETRY_EVERY_S, Retries
from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.client import UnsupportedVersionError
from protocol.errors import ErrorCode
from protocol.messages.k02_list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.messages.k03_metadata import MetadataResponsePartition
from protocol.messages.k19_create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from protocol.messages.k20_delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from protocol.messages.k21_delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from protocol.messages.k37_create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from protocol.messages.k60_describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from protocol.schema.message import Message

Item = TypeVar("Item")
M = TypeVar("M", bound=Message)

REQUEST_TIMEOUT_MS = 30_000
# A request about a partition is sent again for this time while its leader changes, and one to the controller while
# that is elected.
RETRY_FOR_S = 30.0
# A topic that was just created is not known to every broker at once.
NEW_TOPIC_FOR_S = 1.0
FIRST_WITH_FENCED_BROKERS = 2
FIRST_WITH_DOCUMENTATION = 3
FIRST_WITH_TOPIC_STATES = 6
# The sources of configs that a topic only inherits: from all brokers, from a broker's start, from Kafka's defaults.
INHERITED_SOURCES = (3, 4, 5)

CONSUMER, DEBUGGING_CONSUMER = -1, -2
LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
READ_UNCOMMITTED, READ_COMMITTED = 0, 1
# Per request. Other clients of a broker wait for no longer than one takes, a millisecond or two.
MAX_PARTITIONS = 200
MAX_RESOURCES = 200  # per request; the response has some forty configs for each
# A broker that does not respond within this time is probably down.
OFFSETS_TIMEOUT_S, OFFSETS_RETRY_FOR_S = 2.0, 1.0


def chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """Split items into sequences of at most `size`, for several requests."""
    return [items[start : start + size] for start in range(0, len(items), size)]


# The cluster and its topics.


def describe_cluster(cluster: ClusterClient) -> DescribeClusterResponse:
    """Return the cluster id, the controller (-1 for none) and the brokers, fenced ones included."""
    try:
        version = cluster.version(ApiKey.DESCRIBE_CLUSTER)
    except UnsupportedVersionError:
        # Brokers before Kafka 2.8.
        metadata = cluster.metadata([])
        rows = [
            DescribeClusterBroker(broker_id=row.node_id, host=row.host, port=row.port, rack=row.rack)
            for row in metadata.brokers
        ]
        return DescribeClusterResponse(
            cluster_id=metadata.cluster_id or "", controller_id=metadata.controller_id, brokers=rows
        )
    request = DescribeClusterRequest(include_fenced_brokers=version >= FIRST_WITH_FENCED_BROKERS)
    response = cluster.request(request, DescribeClusterResponse)
    check(response.error_code, "DescribeCluster", response.error_message)
    return response


class MetadataTopic(NamedTuple):
    """A topic of a Metadata response. `topic_id` is zeros if the broker has no topic ids."""

    name: str
    topic_id: bytes
    is_internal: bool
    error_code: int
    partitions: Sequence[MetadataResponsePartition]


def describe_topics(cluster: ClusterClient, names: Iterable[str] | None = None) -> list[MetadataTopic]:
    """Return topics, by default all. One that does not exist has an error code."""
    return [
        MetadataTopic(topic.name or "", topic.topic_id, topic.is_internal, topic.error_code, topic.partitions)
        for topic in cluster.metadata(names).topics
    ]


def at_controller(
    cluster: ClusterClient, request: Message, response_type: type[M], error_codes: Callable[[M], Collection[int]]
) -> M:
    """Send a request to any broker, which forwards it to the controller, or if it does not, to the controller."""
    retries = Retries(cluster.on_wait, RETRY_FOR_S)
    broker: int | None = None
    while True:
        response = cluster.request(request, response_type, broker)
        if ErrorCode.NOT_CONTROLLER not in error_codes(response) or not retries.again("the cluster has no controller"):
            return response
        controller = cluster.metadata([]).controller_id
        broker = controller if controller >= 0 else None


class TopicSpec(NamedTuple):
    """A topic to create; -1 stands for the broker's default."""

    partitions: int = -1
    replication_factor: int = -1
    configs: Mapping[str, str] = {}


def create_topics(
    cluster: ClusterClient, topics: Mapping[str, TopicSpec], *, validate_only: bool = False
) -> list[CreatableTopicResult]:
    """Create topics, and return the result for each."""
    rows = [
        CreatableTopic(
            name=name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=[CreatableTopicConfig(name=config, value=value) for config, value in topic.configs.items()],
        )
        for name, topic in topics.items()
    ]
    request = CreateTopicsRequest(topics=rows, timeout_ms=REQUEST_TIMEOUT_MS, validate_only=validate_only)
    return at_controller(
        cluster, request, CreateTopicsResponse, lambda response: {row.error_code for row in response.topics}
    ).topics


def delete_topics(cluster: ClusterClient, names: Sequence[str]) -> list[DeletableTopicResult]:
    """Delete topics, and return the result for each."""
    if cluster.version(ApiKey.DELETE_TOPICS) >= FIRST_WITH_TOPIC_STATES:
        states = [DeleteTopicState(name=name) for name in names]
        request = DeleteTopicsRequest(topics=states, timeout_ms=REQUEST_TIMEOUT_MS)
    else:
        request = DeleteTopicsRequest(topic_names=list(names), timeout_ms=REQUEST_TIMEOUT_MS)
    return at_controller(
        cluster, request, DeleteTopicsResponse, lambda response: {row.error_code for row in response.responses}
    ).responses


def create_partitions(cluster: ClusterClient, counts: Mapping[str, int]) -> list[CreatePartitionsTopicResult]:
    """Raise the number of partitions of topics, and return the result for each."""
    rows = [CreatePartitionsTopic(name=name, count=count, assignments=None) for name, count in counts.items()]
    return at_controller(
        cluster,
        CreatePartitionsRequest(topics=rows, timeout_ms=REQUEST_TIMEOUT_MS),
        CreatePartitionsResponse,
        lambda response: {row.error_code for row in response.results},
    ).results


# Configs.

TOPIC, BROKER = 2, 4  # types of resources


class TypedResource(NamedTuple):
    """A resource that has configs. `type` is the protocol's number. A broker without a name stands for all brokers."""

    type: int
    name: str


def describe_configs_request(
    resources: Sequence[TypedResource],
    keys: Sequence[str] | None = None,
    *,
    documented: bool = False,
    with_synonyms: bool = True,
) -> DescribeConfigsRequest:
    """Return the request for some configs of resources, by default for all."""
    rows = [
        DescribeConfigsResource(
            resource_type=type, resource_name=name, configuration_keys=None if keys is None else list(keys)
        )
        for type, name in resources
    ]
    return DescribeConfigsRequest(resources=rows, include_synonyms=with_synonyms, include_documentation=documented)


def describe_configs(
    cluster: ClusterClient,
    resources: Sequence[TypedResource],
    keys: Sequence[str] | None = None,
    *,
    documented: bool = False,
    broker: int | None = None,
) -> list[DescribeConfigsResult]:
    """Return configs of resources, or errors. `documented`: if the broker knows it. `broker`: who has to respond."""
    documented = documented and cluster.version(ApiKey.DESCRIBE_CONFIGS) >= FIRST_WITH_DOCUMENTATION
    request = describe_configs_request(resources, keys, documented=documented)
    return cluster.request(request, DescribeConfigsResponse, broker).results


def topic_configs(
    cluster: ClusterClient, topics: Sequence[str], keys: Sequence[str] | None = None, *, set_only: bool = False
) -> dict[str, dict[str, str]]:
    """Return the values of configs by topic and name, without null values. Topics with an error have none.

    `set_only`: only the configs that are set for the topic itself.
    """
    values: dict[str, dict[str, str]] = {}
    for chunk in chunks(list(topics), MAX_RESOURCES):
        resources = [TypedResource(TOPIC, topic) for topic in chunk]
        request = describe_configs_request(resources, keys, with_synonyms=False)
        for described in cluster.request(request, DescribeConfigsResponse).results:
            values[described.resource_name] = {
                config.name: config.value
                for config in described.configs
                if config.value is not None and not (set_only and config.config_source in INHERITED_SOURCES)
            }
    return values


# The operations of IncrementalAlterConfigs, and changes as (operation, value) by config name.
OPERATIONS = {"SET": 0, "DELETE": 1, "APPEND": 2, "SUBTRACT": 3}
ConfigChanges = Mapping[str, tuple[str, str | None]]


def alter_configs(
    cluster: ClusterClient,
    resource: TypedResource,
    changes: ConfigChanges,
    *,
    validate_only: bool = False,
    broker: int | None = None,
) -> AlterConfigsResourceResponse:
    """Make all changes to a resource, or none, and return the result."""
    configs = [
        AlterableConfig(name=name, config_operation=OPERATIONS[operation], value=value)
        for name, (operation, value) in changes.items()
    ]
    row = AlterConfigsResource(resource_type=resource.type, resource_name=resource.name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[row], validate_only=validate_only)
    return cluster.request(request, IncrementalAlterConfigsResponse, broker).responses[0]


# Offsets.


def list_offsets_request(
    timestamps: Mapping[PartitionKey, int], isolation_level: int = READ_UNCOMMITTED, replica_id: int = CONSUMER
) -> ListOffsetsRequest:
    """Return the request for the offsets of timestamps, by partition."""
    rows: dict[str, list[ListOffsetsPartition]] = {}
    for (topic, index), timestamp in timestamps.items():
        rows.setdefault(topic, []).append(ListOffsetsPartition(partition_index=index, timestamp=timestamp))
    return ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation_level,
        topics=[ListOffsetsTopic(name=topic, partitions=partitions) for topic, partitions in rows.items()],
        timeout_ms=REQUEST_TIMEOUT_MS,
    )


def list_offsets(
    cluster: ClusterClient, timestamps: Mapping[PartitionKey, int], isolation_level: int = READ_UNCOMMITTED
) -> dict[TopicPartition, int]:
    """Return the offset of a timestamp, LATEST or EARLIEST for each partition; -1 if no record is as new.

    Waits for leaders that are being elected.
    """
    offsets: dict[TopicPartition, int] = {}
    by_partition: dict[Partition, int] = dict(timestamps.items())

    def ask(leader: int, partitions: Sequence[Partition], errors: dict[Partition, int]) -> None:
        request = list_offsets_request({at: by_partition[at] for at in partitions}, isolation_level)
        for topic in cluster.request(request, ListOffsetsResponse, leader).topics:
            for row in topic.partitions:
                if row.error_code:
                    errors[topic.name, row.partition_index] = row.error_code
                else:
                    offsets[TopicPartition(topic.name, row.partition_index)] = row.offset

    at_leaders(cluster, timestamps, ask)
    return offsets


def at_leaders(
    cluster: ClusterClient,
    partitions: Iterable[Partition],
    send: Callable[[int, Sequence[Partition], dict[Partition, int]], None],
) -> None:
    """Call `send` with each leader and its partitions. It adds the error codes, and is called again for these.

    Waits for leaders that are being elected. Raises BrokerError for other errors.
    """
    left = list(partitions)
    retries, new_topic_deadline = Retries(cluster.on_wait, RETRY_FOR_S), monotonic() + NEW_TOPIC_FOR_S
    while left:
        errors: dict[Partition, int] = {}
        for leader, led in _by_leader(cluster, left, errors).items():
            for chunk in chunks(led, MAX_PARTITIONS):
                send(leader, chunk, errors)
        failures = [BrokerError(code, partition_text(partition)) for partition, code in errors.items()]
        for failure in failures:
            is_unknown = failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if failure.code not in LEADER_ERRORS or (is_unknown and monotonic() > new_topic_deadline):
                raise failure
        if failures and not retries.again(failures[0]):
            raise failures[0]
        left = list(errors)


def _by_leader(
    cluster: ClusterClient, partitions: Collection[Partition], errors: dict[Partition, int]
) -> dict[int, list[Partition]]:
    """Group partitions by leader. Adds those without a leader to `errors`."""
    leaders = {}
    for topic in describe_topics(cluster, sorted({topic for topic, _ in partitions})):
        leaders.update({(topic.name, row.partition_index): row.leader_id for row in topic.partitions})
    grouped: dict[int, list[Partition]] = {}
    for partition in partitions:
        if partition not in leaders:
            errors[partition] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif leaders[partition] < 0:
            errors[partition] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            grouped.setdefault(leaders[partition], []).append(partition)
    return grouped


def partitions_by_leader(topics: Iterable[MetadataTopic]) -> dict[int, list[Partition]]:
    """Group the partitions that have a leader by it."""
    led: dict[int, list[Partition]] = {}
    for topic in topics:
        for row in topic.partitions:
            if row.leader_id >= 0:
                led.setdefault(row.leader_id, []).append((topic.name, row.partition_index))
    return led


def latest_offsets(cluster: ClusterClient, partitions: Collection[Partition]) -> dict[TopicPartition, int]:
    """Return the latest offsets of the partitions that exist and whose leaders respond."""
    topics = sorted({topic for topic, _ in partitions})
    led = partitions_by_leader(describe_topics(cluster, topics)) if topics else {}
    wanted = {leader: [each for each in of_leader if each in partitions] for leader, of_leader in led.items()}
    found = offsets_at_brokers(cluster, wanted, LATEST)
    return {TopicPartition(*partition): offset for (_, partition), offset in found.items()}


def offsets_at_brokers(
    cluster: ClusterClient, partitions: Mapping[int, Sequence[Partition]], timestamp: int,
    replica_id: int = CONSUMER, isolation_level: int = READ_UNCOMMITTED,
) -> dict[tuple[int, Partition], int]:  # fmt: skip
    """Return the offsets of `rows_at_brokers`."""
    rows = rows_at_brokers(cluster, partitions, timestamp, replica_id, isolation_level)
    return {key: row.offset for key, row in rows.items()}


def rows_at_brokers(
    cluster: ClusterClient, partitions: Mapping[int, Sequence[Partition]], timestamp: int,
    replica_id: int = CONSUMER, isolation_level: int = READ_UNCOMMITTED,
) -> dict[tuple[int, Partition], ListOffsetsPartitionResponse]:  # fmt: skip
    """Return offsets and timestamps that brokers report for their partitions, by broker and partition.

    For commands that look at a cluster in trouble. Partitions without an offset are missing: their broker does not
    respond, or not with an offset.
    """
    rows: dict[tuple[int, Partition], ListOffsetsPartitionResponse] = {}
    deadline = monotonic() + OFFSETS_RETRY_FOR_S
    while partitions:
        requests = [
            (broker, list_offsets_request(dict.fromkeys(chunk, timestamp), isolation_level, replica_id))
            for broker, named in partitions.items()
            for chunk in chunks(named, MAX_PARTITIONS)
        ]
        again: dict[int, list[Partition]] = {}
        for broker, response in cluster.request_all(requests, ListOffsetsResponse, OFFSETS_TIMEOUT_S):
            for topic in response.topics:
                for row in topic.partitions:
                    partition = topic.name, row.partition_index
                    if not row.error_code:
                        rows[broker, partition] = row
                    elif row.error_code in LEADER_ERRORS:
                        again.setdefault(broker, []).append(partition)
        if monotonic() > deadline:
            break
        partitions = again
        if partitions:
            sleep(RETRY_EVERY_S)
    return rows


def delete_records(cluster: ClusterClient, offsets: Mapping[PartitionKey, int]) -> None:
    """Delete the records below an offset of each partition."""
    by_partition: dict[Partition, int] = dict(offsets.items())

    def delete(leader: int, partitions: Sequence[Partition], errors: dict[Partition, int]) -> None:
        rows: dict[str, list[DeleteRecordsPartition]] = {}
        for topic, index in partitions:
            row = DeleteRecordsPartition(partition_index=index, offset=by_partition[topic, index])
            rows.setdefault(topic, []).append(row)
        topics = [DeleteRecordsTopic(name=topic, partitions=of_topic) for topic, of_topic in rows.items()]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=REQUEST_TIMEOUT_MS)
        for result in cluster.request(request, DeleteRecordsResponse, leader).topics:
            for found in result.partitions:
                if found.error_code:
                    errors[result.name, found.partition_index] = found.error_code

    at_leaders(cluster, offsets, delete)
