"""Brokers over plain sockets, for a task that sends records: one thread, requests answered in their order.

What fails on the way leaves here as OSError (the answer to what was asked is unknown then), what a broker refuses as
RefusedError. Times are in seconds.
"""

import socket
from collections import deque
from collections.abc import Callable, Mapping
from functools import wraps
from struct import Struct
from typing import NamedTuple, ParamSpec, TypeVar

from kbroker.pipeline.errors import PipelineError
from protocol.apis import APIS, ApiKey
from protocol.errors import ErrorCode, MalformedError
from protocol.framing import decode_response_header, encode_frame, encode_request_header
from protocol.messages.k03_metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from protocol.messages.k18_api_versions import ApiVersionsRequest, ApiVersionsResponse
from protocol.schema.codec import decode, encode
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)
P = ParamSpec("P")
R = TypeVar("R")
Address = tuple[str, int]

CLIENT_ID = "kbroker-replay"
CONNECT_TIMEOUT_S = 5.0
# The newest versions that name topics: later ones want their ids.
NEWEST = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12}
FIRST_WITH_SEVERAL = 4  # of FindCoordinator: several keys in one request
GROUP = 0
MAX_ANSWER = 128 << 20

_SIZE = Struct(">i")


class RefusedError(Exception):
    """A broker's answer with an error."""

    def __init__(self, code: int, what: str, message: str | None = None) -> None:
        try:
            self.code = ErrorCode(code)
        except ValueError:
            self.code = ErrorCode.UNKNOWN_SERVER_ERROR
        detail = f"{message.rstrip('.')} ({self.code.name})" if message else self.code.name
        super().__init__(f"{what}: {detail}")


class UnsupportedError(PipelineError):
    """The broker has no version of an API that is known here."""


class _Asked(NamedTuple):
    correlation_id: int
    key: int
    version: int


class Connection:
    """One connection. Several requests may be posted before the first answer is taken."""

    def __init__(self, address: Address, timeout_s: float) -> None:
        self._asked: deque[_Asked] = deque()
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket = socket.create_connection(address, CONNECT_TIMEOUT_S)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._introduce()
        except BaseException:
            self._socket.close()
            raise

    def has(self, key: ApiKey) -> bool:
        """Whether broker and client have a version of this API in common."""
        return self._versions.get(key, (0, -1))[0] <= self.newest(key)

    def newest(self, key: ApiKey) -> int:
        """The newest version that both know, negative where the broker has none."""
        return min(self._versions.get(key, (0, -1))[1], NEWEST.get(key, APIS[key].max_version))

    def post(self, request: Message) -> None:
        """Sends a request; `take` gives its answer. Raises OSError, UnsupportedError."""
        key = ApiKey(request.__class__.__options__["key"])
        if not self.has(key):
            raise UnsupportedError(f"the broker does not know {APIS[key].name}, which this needs")
        self._post(request, key, self.newest(key))

    def take(self, answer: type[M]) -> M:
        """The answer to the oldest request that has none yet. Raises OSError."""
        asked = self._asked.popleft()
        (size,) = _SIZE.unpack(self._receive(4))
        if not 4 <= size <= MAX_ANSWER:
            raise ConnectionError(f"the broker answered with a frame of {size} bytes")
        body = self._receive(size)
        try:
            correlation_id, pos = decode_response_header(body, asked.key, asked.version)
            if correlation_id != asked.correlation_id:
                raise ConnectionError("the broker's answers are out of order")
            return decode(answer, body, asked.version, pos)
        except MalformedError as error:
            raise ConnectionError(f"the broker's answer cannot be read: {error}") from None

    def ask(self, request: Message, answer: type[M]) -> M:
        """Only while no other answer is outstanding. Raises OSError, UnsupportedError."""
        assert not self._asked, "answers are outstanding"
        self.post(request)
        return self.take(answer)

    def close(self) -> None:
        self._socket.close()

    def _post(self, request: Message, key: int, version: int) -> None:
        self._correlation_id += 1
        header = encode_request_header(key, version, self._correlation_id, CLIENT_ID)
        self._asked.append(_Asked(self._correlation_id, key, version))
        self._socket.sendall(encode_frame(header, encode(request, version)))

    def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            count = self._socket.recv_into(view[got:])
            if count == 0:
                raise ConnectionResetError("the broker closed the connection")
            got += count
        return data

    def _introduce(self) -> None:
        # Version 0 is understood by all; the newer ones tell nothing that is needed here.
        self._post(ApiVersionsRequest(), ApiKey.API_VERSIONS, 0)
        answer = self.take(ApiVersionsResponse)
        if answer.error_code:
            raise RefusedError(answer.error_code, "asking for versions")
        self._versions = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}


class Topic(NamedTuple):
    """A topic as Metadata has it."""

    topic_id: bytes  # zeros where the broker has none
    leaders: Mapping[int, int]  # the node of each partition's leader, -1 without


class Brokers:
    """The brokers of a cluster, and who leads which partition. `timeout_s`: how long an answer may take."""

    def __init__(self, bootstrap: str, timeout_s: float = 30.0) -> None:
        self._bootstrap = [_address(text.strip()) for text in bootstrap.split(",") if text.strip()]
        self._timeout_s = timeout_s
        self._addresses: dict[int, Address] = {}
        self._connections: dict[Address, Connection] = {}
        self._topics: dict[str, Topic] = {}
        self._cluster_id: str | None = None

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def any(self) -> Connection:
        """A connection to whichever broker is there. Raises OSError."""
        refusal: OSError | None = None
        for address in [*self._connections, *self._bootstrap, *self._addresses.values()]:
            try:
                return self._connected(address)
            except OSError as error:
                refusal = error
        raise refusal or ConnectionError("no broker is named")

    def cluster(self) -> str:
        """The cluster's id, empty where it has none. Raises OSError."""
        if self._cluster_id is None:
            self._look()
        return self._cluster_id or ""

    def node(self) -> tuple[int, Connection]:
        """The number of a broker that is there, and a connection to it: each tells of itself alone. Raises OSError."""
        self._look()
        refusal: OSError | None = None
        for number, address in self._addresses.items():
            try:
                return number, self._connected(address)
            except OSError as error:
                refusal = error
        raise refusal or ConnectionError("no broker is there")

    def _look(self) -> None:
        answer = self.any().ask(MetadataRequest(topics=[]), MetadataResponse)
        self._addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        self._cluster_id = answer.cluster_id or ""

    def topic(self, name: str) -> Topic:
        """As remembered, else asked. Raises OSError, RefusedError."""
        if name not in self._topics:
            request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
            answer = self.any().ask(request, MetadataResponse)
            self._addresses = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
            self._cluster_id = answer.cluster_id
            for topic in answer.topics:
                if topic.error_code:
                    raise RefusedError(topic.error_code, f"topic {name}")
                leaders = {one.partition_index: one.leader_id for one in topic.partitions}
                self._topics[name] = Topic(topic.topic_id, leaders)
        return self._topics[name]

    def leader(self, topic: str, partition: int) -> Connection:
        """A connection to a partition's leader. Raises OSError, RefusedError."""
        node = self.topic(topic).leaders.get(partition, -1)
        if node not in self._addresses:
            self._topics.pop(topic, None)
            raise RefusedError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        return self._connected(self._addresses[node])

    def coordinator(self, group: str) -> Connection:
        """A connection to a group's coordinator. Raises OSError, RefusedError."""
        request = FindCoordinatorRequest(key=group, key_type=GROUP)
        connection = self.any()
        if connection.newest(ApiKey.FIND_COORDINATOR) >= FIRST_WITH_SEVERAL:
            request = FindCoordinatorRequest(key_type=GROUP, coordinator_keys=[group])
        answer = connection.ask(request, FindCoordinatorResponse)
        found: Coordinator | FindCoordinatorResponse = answer.coordinators[0] if answer.coordinators else answer
        if found.error_code:
            raise RefusedError(found.error_code, f"group {group}", found.error_message)
        return self._connected((found.host, found.port))

    def forget(self) -> None:
        """Asks for leaders anew, over new connections, from now on."""
        self.close()
        self._topics.clear()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def _connected(self, address: Address) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(address, self._timeout_s)
        return self._connections[address]


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not (host and port.isascii() and port.isdigit()):
        raise PipelineError(f"a broker's address is HOST:PORT, not {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def told(function: Callable[P, R]) -> Callable[P, R]:
    """What brokers refuse, and that they are gone, leaves the function as PipelineError."""

    @wraps(function)
    def wrapped(*args: P.args, **named: P.kwargs) -> R:
        try:
            return function(*args, **named)
        except RefusedError as error:
            raise PipelineError(f"the broker refuses {error}") from error
        except OSError as error:
            raise PipelineError(f"the broker does not answer: {error}") from error

    return wrapped
