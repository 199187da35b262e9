"""Connections to the brokers of one cluster: to any of them, to partition leaders and to group coordinators."""

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import NamedTuple, ParamSpec, TypeVar

from kbroker.pipeline.errors import PipelineError
from kbroker.pipeline.replay.client.connection import Address, BrokerConnection, BrokerError
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

P = ParamSpec("P")
R = TypeVar("R")

GROUP_KEY_TYPE = 0
# FindCoordinator: the first version with a list of keys (KIP-699).
FIRST_BATCHED_VERSION = 4


class TopicMetadata(NamedTuple):
    """A topic of a Metadata response."""

    topic_id: bytes  # zeros if the broker has no topic ids
    leaders: Mapping[int, int]  # partition to node id, -1 without a leader


class ClusterClient:
    """Connections to a cluster's brokers, with cached metadata. One thread may use it at a time."""

    def __init__(self, bootstrap: str, timeout_s: float = 30.0) -> None:
        """Create an unconnected client. `timeout_s` limits each read and write. Raises PipelineError."""
        self._bootstrap = [_parse_address(text.strip()) for text in bootstrap.split(",") if text.strip()]
        self._timeout_s = timeout_s
        self._addresses: dict[int, Address] = {}
        self._connections: dict[Address, BrokerConnection] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._cluster_id: str | None = None

    def __enter__(self) -> "ClusterClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def any_broker(self) -> BrokerConnection:
        """Return a connection to any broker that can be reached. Raises OSError."""
        _, connection = self._first_reachable([*self._connections, *self._bootstrap, *self._addresses.values()])
        return connection

    def any_node(self) -> tuple[int, BrokerConnection]:
        """Return the node id of a broker that can be reached, and a connection to it. Raises OSError."""
        self._request_metadata([])
        address, connection = self._first_reachable(self._addresses.values())
        return next(node for node, other in self._addresses.items() if other == address), connection

    def cluster_id(self) -> str:
        """Return the cluster id, empty if the cluster has none. Raises OSError."""
        if self._cluster_id is None:
            self._request_metadata([])
        return self._cluster_id or ""

    def topic(self, name: str) -> TopicMetadata:
        """Return a topic's metadata, cached since the last `reset`. Raises OSError, BrokerError."""
        if name not in self._topics:
            response = self._request_metadata([MetadataRequestTopic(name=name)])
            for topic in response.topics:
                if topic.error_code:
                    raise BrokerError(topic.error_code, f"topic {name}")
                leaders = {partition.partition_index: partition.leader_id for partition in topic.partitions}
                self._topics[name] = TopicMetadata(topic.topic_id, leaders)
        return self._topics[name]

    def leader(self, topic: str, partition: int) -> BrokerConnection:
        """Return a connection to a partition's leader. Raises OSError, BrokerError."""
        node = self.topic(topic).leaders.get(partition, -1)
        if node not in self._addresses:
            self._topics.pop(topic, None)
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        return self._connect(self._addresses[node])

    def coordinator(self, group: str) -> BrokerConnection:
        """Return a connection to a group's coordinator. Raises OSError, BrokerError."""
        connection = self.any_broker()
        if connection.version(ApiKey.FIND_COORDINATOR) >= FIRST_BATCHED_VERSION:
            request = FindCoordinatorRequest(key_type=GROUP_KEY_TYPE, coordinator_keys=[group])
        else:
            request = FindCoordinatorRequest(key_type=GROUP_KEY_TYPE, key=group)
        response = connection.request(request, FindCoordinatorResponse)
        found: Coordinator | FindCoordinatorResponse = response.coordinators[0] if response.coordinators else response
        if found.error_code:
            raise BrokerError(found.error_code, f"group {group}", found.error_message)
        return self._connect((found.host, found.port))

    def reset(self) -> None:
        """Close all connections and discard the metadata, so that leaders are looked up again."""
        self.close()
        self._topics.clear()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _request_metadata(self, topics: list[MetadataRequestTopic]) -> MetadataResponse:
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        response = self.any_broker().request(request, MetadataResponse)
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self._cluster_id = response.cluster_id or ""
        return response

    def _first_reachable(self, addresses: Iterable[Address]) -> tuple[Address, BrokerConnection]:
        last_error: OSError | None = None
        for address in addresses:
            try:
                return address, self._connect(address)
            except OSError as error:
                last_error = error
        raise last_error or ConnectionError("no broker is known")

    def _connect(self, address: Address) -> BrokerConnection:
        if address not in self._connections:
            self._connections[address] = BrokerConnection(address, self._timeout_s)
        return self._connections[address]


def as_pipeline_errors(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to raise BrokerError and OSError as PipelineError."""

    @wraps(function)
    def wrapped(*args: P.args, **named: P.kwargs) -> R:
        try:
            return function(*args, **named)
        except BrokerError as error:
            raise PipelineError(f"the broker rejected the request: {error}") from error
        except OSError as error:
            raise PipelineError(f"the broker cannot be reached: {error}") from error

    return wrapped


def _parse_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit()):
        raise PipelineError(f"expected HOST:PORT of a broker, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)
