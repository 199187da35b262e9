"""One connection of a simulated client: several requests in flight, a deadline for each; and its API versions."""

import asyncio
from collections.abc import Callable, Mapping
from random import Random
from typing import NamedTuple, TypeVar

from kbroker.client.requests import MAX_VERSIONS, Address
from protocol.apis import APIS, ApiKey
from protocol.client import ClientConnection, EncodedRequest, NegotiationError, Response
from protocol.schema.message import Message

M = TypeVar("M", bound=Message)
# Called with the response to a request, or with None when the connection was lost before.
ResponseCallback = Callable[[Response | None], None]


class ConnectionLostError(ConnectionError):
    """The connection is closed. Whether the broker has processed the requests in flight is unknown."""


class PendingRequest(NamedTuple):
    """A request without a response, and the time on the loop's clock by which the response must arrive."""

    deadline: float
    on_response: ResponseCallback


class SimClientConnection(asyncio.Protocol):
    """Closes itself when a response does not arrive before the deadline of its request."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, client_id: str, caps: Mapping[int, int], timeout_s: float
    ) -> None:
        """`caps`: the highest versions to use, by API key. `timeout_s`: for each request without one of its own."""
        self.lost = False
        self._loop = loop
        self._timeout_s = timeout_s
        self._core = ClientConnection(
            client_id, max_versions=caps, software_name="kbroker-simulation", software_version="1"
        )
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, PendingRequest] = {}
        self._timer: asyncio.TimerHandle | None = None

    # Requests.

    @property
    def finalized_features(self) -> Mapping[str, int]:
        """The levels of the broker's finalized features."""
        return self._core.finalized_features

    def version(self, key: int) -> int:
        """Return the version of an API that this connection uses. Raises UnsupportedVersionError."""
        return self._core.version(key)

    def send(self, request: Message, version: int, on_response: ResponseCallback | None) -> None:
        """Send a request. `on_response` is None for a request without a response (acks=0).

        Raises ConnectionLostError if the connection is already closed.
        """
        encoded = self._core.send(request, version, expect_response=on_response is not None)
        self._write(encoded, on_response, self._timeout_s)

    async def request(
        self, request: Message, response_class: type[M], *, version: int | None = None, timeout_s: float | None = None
    ) -> M:
        """Send a request and wait for its response. Raises ConnectionLostError, UnsupportedVersionError."""
        encoded = self._core.send(request, version)
        response = await self._exchange(encoded, self._timeout_s if timeout_s is None else timeout_s)
        return response.decode(response_class)

    async def negotiate(self) -> None:
        """Ask the broker for its versions. Raises ConnectionLostError."""
        request: EncodedRequest | None = self._core.start_negotiation()
        while request is not None:
            response = await self._exchange(request, self._timeout_s)
            try:
                request = self._core.continue_negotiation(response)
            except NegotiationError as error:
                raise ConnectionLostError(str(error)) from error

    def close(self) -> None:
        """Close the connection. The requests in flight are lost."""
        if self._transport is not None:
            self._transport.abort()
        self._lose()

    async def _exchange(self, request: EncodedRequest, timeout_s: float) -> Response:
        future: asyncio.Future[Response] = self._loop.create_future()

        def on_response(response: Response | None) -> None:
            if future.done():
                return
            if response is None:
                future.set_exception(ConnectionLostError("the connection was closed before the response"))
            else:
                future.set_result(response)

        self._write(request, on_response, timeout_s)
        return await future

    def _write(self, request: EncodedRequest, on_response: ResponseCallback | None, timeout_s: float) -> None:
        if self.lost or self._transport is None:
            raise ConnectionLostError("the connection is closed")
        if on_response is not None:
            deadline = self._loop.time() + timeout_s
            self._pending[request.correlation_id] = PendingRequest(deadline, on_response)
            if self._timer is None or deadline < self._timer.when():
                self._set_timer(deadline)
        self._transport.write(request.frame)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._core.receive(data)
        # A callback may close the connection.
        while not self.lost and (response := self._core.next_response()) is not None:
            self._pending.pop(response.correlation_id).on_response(response)

    def connection_lost(self, error: Exception | None) -> None:
        self._lose()

    # Deadlines and loss.

    def _set_timer(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        # The request that the timer was set for may have its response by now.
        self._timer = None
        if not self._pending:
            return
        deadline = min(request.deadline for request in self._pending.values())
        if deadline <= self._loop.time():
            self.close()
        else:
            self._set_timer(deadline)

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        if self._timer is not None:
            self._timer.cancel()
        pending, self._pending = self._pending, {}
        for request in pending.values():
            request.on_response(None)


async def connect(
    loop: asyncio.AbstractEventLoop, address: Address, client_id: str, caps: Mapping[int, int], timeout_s: float
) -> SimClientConnection:
    """Connect and negotiate versions. Raises OSError, including ConnectionLostError and TimeoutError."""
    async with asyncio.timeout(timeout_s):
        _, connection = await loop.create_connection(
            lambda: SimClientConnection(loop, client_id, caps, timeout_s), *address
        )
        try:
            await connection.negotiate()
        except BaseException:
            connection.close()
            raise
    return connection


# The API versions of a client: the newest that both sides support, or older ones drawn from the seed.

# Lowest versions that the clients need: record format v2, no auto-created topics, offsets by timestamp, member ids.
_LOWEST = {
    ApiKey.PRODUCE: 3,
    ApiKey.FETCH: 4,
    ApiKey.METADATA: 4,
    ApiKey.JOIN_GROUP: 1,
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.OFFSET_FETCH: 2,
}
FIRST_METADATA_WITH_IDS = 10
# The first versions with group.instance.id (KIP-345).
STATIC_MEMBERS = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
    ApiKey.LEAVE_GROUP: 3,
    ApiKey.OFFSET_COMMIT: 7,
}

# The APIs whose versions are drawn, in this order. To draw that of another one would change the runs of existing seeds.
_DRAWN = (
    ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.API_VERSIONS, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS, ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_GROUPS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.OFFSET_DELETE, ApiKey.UPDATE_FEATURES,
    ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS,
    ApiKey.LIST_CONFIG_RESOURCES, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
)  # fmt: skip

# The last versions of Kafka 4.3, which the clients have whose versions are drawn.
_LAST_OF_4_3 = {ApiKey.API_VERSIONS: 4, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.DELETE_GROUPS: 2}

# The highest version to use, by API key.
Caps = dict[int, int]


def draw_older_versions(random: Random, *, static_members: bool = False) -> Caps:
    """Draw a version of each API. `static_members`: at least the versions with group.instance.id."""
    caps: Caps = {}
    for key in _DRAWN:
        api = APIS[key]
        lowest = max(api.min_version, _LOWEST.get(key, 0), STATIC_MEMBERS.get(key, 0) if static_members else 0)
        caps[key] = random.randint(lowest, _LAST_OF_4_3.get(key, api.max_version))
    if caps[ApiKey.METADATA] < FIRST_METADATA_WITH_IDS:
        for named, last in MAX_VERSIONS.items():
            caps[named] = min(caps[named], last)
    return caps


# The last versions without support for transaction version 2 (KIP-890).
_LAST_OF_VERSION_1 = {
    ApiKey.PRODUCE: 11,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
}
# The first versions with the group's generation (KIP-447) and with require_stable.
_LOWEST_IN_TRANSACTIONS = {
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.OFFSET_FETCH: 7,
}


def draw_older_transactional_versions(random: Random) -> Caps:
    """Draw versions of a client that supports transaction version 1 only."""
    caps = draw_older_versions(random)
    for key, lowest in _LOWEST_IN_TRANSACTIONS.items():
        caps[key] = max(lowest, caps.get(key, lowest))
    for key, last in _LAST_OF_VERSION_1.items():
        caps[key] = min(caps.get(key, last), last)
    return caps
