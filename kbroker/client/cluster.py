"""Connections to the brokers of one cluster: to any of them, to partition leaders, coordinators and the controller."""

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from kbroker.client.connection import CONNECT_TIMEOUT_S, REQUEST_TIMEOUT_S, BrokerConnection, BrokerUnreachable
from kbroker.client.requests import (
    COORDINATOR_ERRORS,
    GROUP,
    MAX_VERSIONS,
    REPEATABLE,
    TRANSACTION,
    Address,
    BrokerError,
    FoundCoordinator,
    check,
    find_coordinator_request,
    found_coordinator,
    partition_text,
)
from kbroker.client.retries import OnWait, Retries, ignore_wait, reported_wait
from kbroker.client.security import NO_SECURITY
from kbroker.common import ClientSecurity, format_address
from protocol.apis import ApiKey
from protocol.client import UnsupportedVersionError
from protocol.errors import ErrorCode, error_name
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k10_find_coordinator import FindCoordinatorResponse
from protocol.schema.message import Message, message_info

M = TypeVar("M", bound=Message)

# A request that only reads is sent again for this time while the broker that was asked cannot be reached.
READ_FOR_S = 10.0
# A request is sent again for this time while its coordinator moves or loads.
COORDINATOR_FOR_S = 30.0
MAX_THREADS = 32
_SUBJECTS = {GROUP: "group", TRANSACTION: "transactional id"}


class UnknownBroker(Exception):
    """There is no broker with this id among those that clients know."""

    def __init__(self, broker: int) -> None:
        super().__init__(f"there is no broker {broker}")


class TopicMetadata(NamedTuple):
    """A topic of a Metadata response."""

    topic_id: bytes  # zeros if the broker has no topic ids
    leaders: Mapping[int, int]  # partition to node id, -1 without a leader


class ClusterClient:
    """Connections to a cluster's brokers, with cached metadata. One thread may use it at a time."""

    def __init__(
        self,
        bootstrap: Sequence[Address],
        *,
        client_id: str,
        timeout_s: float = REQUEST_TIMEOUT_S,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        security: ClientSecurity = NO_SECURITY,
        max_versions: Mapping[int, int] = MAX_VERSIONS,
        on_wait: OnWait = ignore_wait,
    ) -> None:
        """Create an unconnected client. `timeout_s`: for each request without one of its own.

        `on_wait` is called with the reason of each longer wait, not always in this thread.
        """
        self.on_wait = on_wait
        self._bootstrap = list(bootstrap)
        self._client_id = client_id
        self._timeout_s, self._connect_timeout_s = timeout_s, connect_timeout_s
        self._security = security
        self._max_versions = max_versions
        self._addresses: dict[int, Address] = {}
        self._connections: dict[Address, BrokerConnection] = {}
        self._topics: dict[str, TopicMetadata] = {}
        self._cluster_id: str | None = None

    def __enter__(self) -> "ClusterClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def reset(self) -> None:
        """Close all connections and discard the metadata, so that leaders are looked up again."""
        self.close()
        self._topics.clear()

    def forget_topics(self) -> None:
        """Discard the metadata of topics, so that leaders are looked up again."""
        self._topics.clear()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Requests.

    def request(
        self, request: Message, response_type: type[M], broker: int | None = None, timeout_s: float | None = None
    ) -> M:
        """Send a request to a broker, by default to any, and return the response.

        A request to any broker that only reads is sent again, to another broker, while none responds. Raises
        BrokerUnreachable, UnsupportedVersionError, UnknownBroker.
        """
        if broker is not None:
            return self.broker(broker).request(request, response_type, timeout_s)
        if message_info(type(request)).key not in REPEATABLE:
            return self.any_broker().request(request, response_type, timeout_s)
        retries = Retries(self.on_wait, READ_FOR_S)
        while True:
            try:
                return self.any_broker().request(request, response_type, timeout_s)
            except OSError as error:
                # At first nothing is known but the addresses of the command line.
                if not self._connections or not retries.again(error):
                    raise

    def request_all(
        self, requests: Iterable[tuple[int, Message]], response_type: type[M], timeout_s: float
    ) -> list[tuple[int, M]]:
        """Send requests to the brokers with these ids, all at once, and return the responses that arrive in time.

        Brokers that cannot be reached, do not know the request or are not known have no response.
        """
        by_broker: dict[int, list[Message]] = {}
        for broker, request in requests:
            by_broker.setdefault(broker, []).append(request)
        if any(broker not in self._addresses for broker in by_broker):
            self.metadata([])
        known = [broker for broker in by_broker if broker in self._addresses]

        def ask(broker: int) -> list[tuple[int, M]]:
            responses = []
            try:
                for request in by_broker[broker]:
                    responses.append((broker, self.request(request, response_type, broker, timeout_s)))
            except (OSError, BrokerError, UnsupportedVersionError):
                pass
            return responses

        if len(known) < 2:
            return [response for broker in known for response in ask(broker)]
        from concurrent.futures import ThreadPoolExecutor

        # Each thread has the connection of one broker to itself.
        with ThreadPoolExecutor(min(len(known), MAX_THREADS)) as pool:
            return [response for responses in pool.map(ask, known) for response in responses]

    def coordinated(
        self,
        key: str,
        request: Message,
        response_type: type[M],
        error_code: Callable[[M], int],
        key_type: int = GROUP,
        timeout_s: float | None = None,
    ) -> M:
        """Send a request to the coordinator of a group or a transactional id, again while that is moving or loading.

        Returns a response with an error code only after COORDINATOR_FOR_S. Raises as `request`, and BrokerError.
        """
        retries = Retries(self.on_wait, COORDINATOR_FOR_S)
        while True:
            connection = self._connect(self.find_coordinator(key, key_type).address)
            response = connection.request(request, response_type, timeout_s)
            code = error_code(response)
            if code not in COORDINATOR_ERRORS or not retries.again(f"{_SUBJECTS[key_type]} {key}: {error_name(code)}"):
                return response

    def find_coordinator(self, key: str, key_type: int = GROUP) -> FoundCoordinator:
        """Return the coordinator of a group or a transactional id. Raises BrokerError, BrokerUnreachable.

        Kafka creates the coordinator's topic on the first such request.
        """
        retries = Retries(self.on_wait, COORDINATOR_FOR_S)
        while True:
            request = find_coordinator_request(key, key_type, self.version(ApiKey.FIND_COORDINATOR))
            response = self.request(request, FindCoordinatorResponse)
            try:
                return found_coordinator(response, f"{_SUBJECTS[key_type]} {key}")
            except BrokerError as error:
                if error.code not in COORDINATOR_ERRORS or not retries.again(error):
                    raise

    def version(self, api_key: int) -> int:
        """Return the newest version of an API that this client and a broker support."""
        return self.any_broker().version(api_key)

    # Metadata.

    def metadata(self, topics: Iterable[str] | None) -> MetadataResponse:
        """Return the metadata of the brokers and some topics, or of all. Never creates a topic."""
        rows = None if topics is None else [MetadataRequestTopic(name=topic) for topic in topics]
        response = self.request(MetadataRequest(topics=rows, allow_auto_topic_creation=False), MetadataResponse)
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self._cluster_id = response.cluster_id or ""
        return response

    def create_by_metadata(self, topic: str) -> bool:
        """Ask for a topic so that the broker may create it. Returns whether it does, or has it by now."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
        [found] = self.request(request, MetadataResponse).topics
        return found.error_code in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)

    def cluster_id(self) -> str:
        """Return the cluster id, empty if the cluster has none. Raises OSError."""
        if self._cluster_id is None:
            self.metadata([])
        return self._cluster_id or ""

    def broker_ids(self) -> list[int]:
        """Return the brokers that clients know. Raises OSError."""
        if not self._addresses:
            self.metadata([])
        return sorted(self._addresses)

    def topic(self, name: str) -> TopicMetadata:
        """Return a topic's metadata, cached since the last `reset`. Raises OSError, BrokerError."""
        if name not in self._topics:
            for topic in self.metadata([name]).topics:
                check(topic.error_code, f"topic {name}")
                leaders = {partition.partition_index: partition.leader_id for partition in topic.partitions}
                self._topics[name] = TopicMetadata(topic.topic_id, leaders)
        return self._topics[name]

    # Connections.

    def leader(self, topic: str, partition: int) -> BrokerConnection:
        """Return a connection to a partition's leader. Raises OSError, BrokerError."""
        node = self.topic(topic).leaders.get(partition, -1)
        if node not in self._addresses:
            self._topics.pop(topic, None)
            raise BrokerError(ErrorCode.LEADER_NOT_AVAILABLE, partition_text((topic, partition)))
        return self._connect(self._addresses[node])

    def broker(self, broker: int) -> BrokerConnection:
        """Return a connection to a broker. Raises BrokerUnreachable, UnknownBroker."""
        if broker not in self._addresses:
            self.metadata([])
        if broker not in self._addresses:
            raise UnknownBroker(broker)
        return self._connect(self._addresses[broker])

    def any_broker(self) -> BrokerConnection:
        """Return a connection to any broker that can be reached. Raises BrokerUnreachable."""
        used = [address for address, connection in self._connections.items() if connection.is_open]
        return self._first_reachable(dict.fromkeys([*used, *self._bootstrap, *self._addresses.values()]))

    def any_node(self) -> tuple[int, BrokerConnection]:
        """Return the node id of a broker that can be reached, and a connection to it. Raises OSError."""
        self.metadata([])
        connection = self._first_reachable(self._addresses.values())
        return next(node for node, address in self._addresses.items() if address == connection.address), connection

    def _first_reachable(self, addresses: Iterable[Address]) -> BrokerConnection:
        errors = []
        for address in addresses:
            try:
                return self._connect(address)
            except OSError as error:
                errors.append(f"{format_address(*address)}: {error.strerror or error}")
        raise BrokerUnreachable(f"cannot connect to {'; '.join(errors)}" if errors else "no broker is known")

    def _connect(self, address: Address) -> BrokerConnection:
        connection = self._connections.get(address)
        if connection is None or not connection.is_usable():
            with reported_wait(self.on_wait, f"no response from {format_address(*address)}"):
                connection = self._connections[address] = BrokerConnection(
                    address, client_id=self._client_id, timeout_s=self._timeout_s,
                    connect_timeout_s=self._connect_timeout_s, security=self._security, max_versions=self._max_versions,
                )  # fmt: skip
            connection.on_wait = self.on_wait
        return connection


def require_reachable(bootstrap: Iterable[Address]) -> None:
    """Raise BrokerUnreachable if no address accepts a connection.

    Without this check, kafka-python and the Java client retry a refused connection silently until they time out.
    """
    errors = []
    for address in bootstrap:
        try:
            socket.create_connection(address, CONNECT_TIMEOUT_S).close()
            return
        except OSError as error:
            errors.append(f"{format_address(*address)}: {error.strerror or error}")
    raise BrokerUnreachable(f"cannot connect to {'; '.join(errors)}")
