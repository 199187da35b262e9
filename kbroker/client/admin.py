"""What the command line and the data pipeline ask of a cluster: topics, configs, and the log directories of brokers.

Functions raise BrokerUnreachable, and BrokerError for the first error of a response unless they return errors.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kbroker.client.cluster import ClusterClient
from kbroker.client.requests import Partition, by_topic, check
from kbroker.client.retries import Retries
from protocol.apis import ApiKey
from protocol.client import UnsupportedVersionError
from protocol.errors import ErrorCode
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
from protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from protocol.messages.k35_describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
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
FIRST_WITH_FENCED_BROKERS = 2
FIRST_WITH_DOCUMENTATION = 3
FIRST_WITH_TOPIC_STATES = 6
# The sources of configs that a topic only inherits: from all brokers, from a broker's start, from Kafka's defaults.
INHERITED_SOURCES = (3, 4, 5)

# Per request. Other clients of a broker wait for no longer than one takes, a millisecond or two.
MAX_PARTITIONS = 200
# A broker that does not respond within this time is probably down.
LOG_DIRS_TIMEOUT_S = 5.0
MAX_RESOURCES = 200  # per request; the response has some forty configs for each


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


# Log directories.


class LogDirs(NamedTuple):
    """The log directories of one broker, added up.

    `sizes`: the bytes of each replica, by topic and partition. `free_bytes`: the free space of the file systems, None
    if a broker before Kafka 3.3 does not report it (KIP-827); `total_bytes`: their size, or None.
    `is_cordoned`: all of them are (KIP-1066).
    """

    sizes: Mapping[Partition, int]
    free_bytes: int | None
    is_cordoned: bool = False
    total_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes.values())


def describe_log_dirs(
    client: ClusterClient, broker_ids: Iterable[int], partitions: Iterable[Partition] | None = None
) -> dict[int, LogDirs]:
    """Return the log directories by broker id, without the brokers that fail to respond or respond with errors.

    `partitions`: those whose sizes are reported; None for all.
    """
    # Null topics: all partitions.
    topics = None
    if partitions is not None:
        topics = [DescribableLogDirTopic(topic=name, partitions=of) for name, of in by_topic(partitions).items()]
    requests = [(broker, DescribeLogDirsRequest(topics=topics)) for broker in broker_ids]
    found = {}
    for broker, response in client.request_all(requests, DescribeLogDirsResponse, LOG_DIRS_TIMEOUT_S):
        results = [result for result in response.results if not result.error_code]
        if results:
            found[broker] = log_dirs(results)
    return found


def log_dirs(results: Sequence[DescribeLogDirsResult]) -> LogDirs:
    """Return the log directories of a DescribeLogDirs response without errors.

    A replica that moves to another directory has bytes in both.
    """
    sizes: dict[Partition, int] = {}
    for result in results:
        for topic in result.topics:
            for row in topic.partitions:
                partition = (topic.name, row.partition_index)
                sizes[partition] = sizes.get(partition, 0) + row.partition_size

    def known(amounts: Sequence[int]) -> int | None:
        return sum(amounts) if min(amounts) >= 0 else None

    free, total = ([getattr(row, name) for row in results] for name in ("usable_bytes", "total_bytes"))
    return LogDirs(sizes, known(free), all(row.is_cordoned for row in results), known(total))
