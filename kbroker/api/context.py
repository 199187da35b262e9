"""The contract of the API handlers.

Each API that the broker supports is one file, kNN_name.py, with one function:

    handle(services, context, request) -> Response | Awaitable[Response] | None

A file of several APIs (`family` in protocol/apis.py) has a dict of these functions, HANDLERS. The file says with
constants (True, or the set of those of its APIs that are meant) whether brokers forward the requests to the controller
(FORWARDED), run them in turns (RUNS_IN_TURNS), and what may overlap with them (OVERLAP). What a client must be allowed
is a row in authorization_rules.py.

- The caller decodes the request, encodes the response, and logs and counts the error codes in it.
- A handler that has to wait is a coroutine function or returns a DelayedResponse. Until the response is complete, no
  further request of the same connection is handled, except those that may overlap with a DelayedResponse (`Overlap`).
- If the connection closes meanwhile, a DelayedResponse is abandoned, but a coroutine runs to its end, so that no change
  is left half done.
- If the response follows from the request, the version, the identity of the connection, the metadata image and the
  broker's config alone, the file may have a second function, `is_cacheable(services, request)`. Where it is true, a
  response without an error is sent again to the same request of the same identity, without decoding and handling it,
  until the image or the config changes.
- If it also follows from the state of partitions, the file may have `find_response(services, key)`, which returns the
  encoded body of an earlier response to a request with the same key (identity and bytes) if it is still right, and
  `keep_response(services, key, request, response, body)`, called with each response that was complete at once.
- Loops over elements whose number clients choose call `yield_if_due` (runtime/turns.py), so that other requests are
  served between the elements of a large request. If a small request may have a large response, the file has
  `RUNS_IN_TURNS = True`. A coroutine that may wait for long has `RESPONDS_IN_TURNS = True` instead: then it keeps no
  stack while it waits, and its loops do not pause.
- None: the request gets no response (Produce with acks=0).
- The records of a Produce request are views of a receive buffer that is reused as soon as the handler returns. A
  coroutine must copy them first.
- A KafkaError that the handler raises becomes the error code of the response. If the response has none, or needs more,
  the file has `failed_response(context, request, error)`. Any other exception closes the connection.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from kbroker.authorization.acl import ALL_OPERATIONS, Operation, ResourceType
from kbroker.authorization.authorizer import Access, Authorizer
from kbroker.common import ANONYMOUS, Buffer, KafkaError, Principal
from kbroker.config import BrokerConfig
from kbroker.coordinator.group.group_coordinator import GroupCoordinator
from kbroker.coordinator.group.share.share_group_states import ShareGroupStates
from kbroker.coordinator.share.share_coordinator import ShareCoordinator
from kbroker.coordinator.transaction.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
from kbroker.coordinator.transaction.transaction_markers import TransactionMarkerWriter
from kbroker.interbroker.auto_topic_creation_manager import AutoTopicCreationManager
from kbroker.interbroker.controller_channel import BROKER_PRINCIPAL
from kbroker.metadata.controller import Controller
from kbroker.metadata.image import MetadataImage
from kbroker.metadata.producer_id_manager import ProducerIdManager
from kbroker.queues.closing.partition_removal import PartitionRemoval
from kbroker.queues.delay.delay_extension import DelayedTopics
from kbroker.quotas.client_quotas import ClientQuotaManager, MutationQuota
from kbroker.quotas.request_charge import RequestCharge
from kbroker.replica.fetch.fetch_manager import FetchManager
from kbroker.replica.replica_manager import ReplicaManager
from kbroker.runtime.delayed_response import DelayedResponse
from kbroker.runtime.environment import Environment
from kbroker.runtime.metrics import RequestStats
from kbroker.share.manager import SharePartitionManager
from kbroker.telemetry.client_instances import ClientMetricsManager
from protocol.apis import ALL_APIS, ApiKey
from protocol.fast.fetch import Records
from protocol.messages.k17_sasl import SaslAuthenticateResponse, SaslHandshakeResponse

if TYPE_CHECKING:
    from kbroker.interbroker.controller_channel import ControllerChannel
    from kbroker.interbroker.peers import Peers
    from kbroker.runtime.audit_log import AuditLog

Body = bytes | Sequence[Buffer | Records]
Handle = Callable[["Services", "RequestContext", Any], Any]


@dataclass(slots=True)
class Services:
    """The parts of the broker that handlers use, assembled by broker.py.

    `marker_writer` writes to the partitions of this broker. `share_states` are those that this broker coordinates.
    `peers` and `controller_channel` are None if this broker is not a member of a cluster, but the only broker.
    `authorizer`: None if clients may do everything. `audit`: None without kbroker.audit.log. `started_ms`: the wall
    clock when the broker started. `salt_key`: the salts of unknown SCRAM users follow from it.
    """

    node_id: int
    config: BrokerConfig
    environment: Environment
    metadata: MetadataImage
    controller: Controller
    replicas: ReplicaManager
    fetching: FetchManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share_states: ShareCoordinator
    share: SharePartitionManager
    share_group_states: ShareGroupStates
    add_partitions_to_txn: AddPartitionsToTxnManager
    marker_writer: TransactionMarkerWriter
    producer_ids: ProducerIdManager
    delayed: DelayedTopics
    auto_topic_creation: AutoTopicCreationManager
    partition_removal: PartitionRemoval
    client_metrics: ClientMetricsManager
    quotas: ClientQuotaManager
    peers: Peers | None = None
    controller_channel: ControllerChannel | None = None
    authorizer: Authorizer | None = None
    audit: AuditLog | None = None
    started_ms: int = 0
    salt_key: bytes = b""


class Identity(NamedTuple):
    """Who sends the requests of a connection, and over which listener: both decide what a response may contain.

    `peer_broker`: (broker id, broker epoch) of the broker that has opened the connection, None for a client.
    `forwarded_by`: that of the broker which has forwarded the request of a client (k58_envelope.py).
    """

    listener: str
    principal: Principal = ANONYMOUS
    peer_broker: tuple[int, int] | None = None
    forwarded_by: tuple[int, int] | None = None

    @property
    def cache_prefix(self) -> bytes:
        """The beginning of the keys of cached responses, which only clients of the same identity get."""
        identity = f"{self.listener}\0{self.principal}".encode()
        return len(identity).to_bytes(2, "big") + identity


class ErrorListener(Protocol):
    """Logs and counts the error codes of responses."""

    def report_error(
        self, context: RequestContext, code: int, count: int, message: str | None, subject: dict[str, object]
    ) -> None: ...

    def report_denied(self, context: RequestContext, code: int, subject: dict[str, object]) -> None:
        """Record in the audit log that a client lacks a right. Called for each element with such a code."""
        ...


# Of a client that has not said it.
UNKNOWN_SOFTWARE = ("unknown", "unknown")


class SaslLogin(Protocol):
    """The logins of a connection: see server/authentication/sasl_session.py."""

    @property
    def expects_token(self) -> bool: ...

    def may_handshake(self, now_ms: int) -> bool: ...

    def handshake(self, mechanism: str, now_ms: int) -> SaslHandshakeResponse: ...

    def authenticate(
        self, token: bytes, now_ms: int
    ) -> SaslAuthenticateResponse | Awaitable[SaslAuthenticateResponse]: ...

    @property
    def is_revoked(self) -> bool: ...


class RequestConnection(Protocol):
    """The part of a request's connection that handlers use.

    `peer`: the client's "host:port". `producer_since`: see queues/closing/retired_partitions.py. `client_software`: the
    name and the version of the client's library, from its ApiVersions request (KIP-511). `access`: the rights of its
    identity as last looked up, see `RequestContext.access`.
    """

    peer: str
    identity: Identity
    client_software: tuple[str, str]
    producer_since: int | None
    access: Access | None

    @property
    def sasl(self) -> SaslLogin | None:
        """The logins of the connection; None without SASL."""
        ...

    @property
    def errors(self) -> ErrorListener: ...

    def hold(self, size: int) -> None:
        """Count `size` more bytes (fewer, if negative) of a request in progress as request memory."""
        ...

    def close(self, reason: str, context: RequestContext | None = None, **detail: object) -> None: ...


class Overlap(Enum):
    """Which further requests of a connection may be handled while one waits for its DelayedResponse.

    ANY: all of them (Produce). SAME_API: requests of the same API (OffsetCommit), so that those of one read share an
    append; any other request sees their effects.
    """

    NONE = auto()
    SAME_API = auto()
    ANY = auto()


@dataclass(slots=True, frozen=True)
class ApiHandler:
    """How one API is served in one version.

    `fail` returns the response in which everything that was requested has the error that the handler has raised.
    `decode` raises ManyElements for a request with many elements, unless it gets a function that it calls from time to
    time. `append` encodes like `encode`: it appends the buffers of a response to a list, and calls a function from time
    to time, which may remove them.
    `runs_in_turns`: requests are handled in turns (runtime/turns.py), since the response to a small one may be large.
    Those of the other APIs are if they have many elements or, with `is_large_by_size`, many bytes (a Produce request of
    one batch is not large). `responds_in_turns`: only the response of the coroutine is encoded in turns.
    `may_be_cached`: responses may be sent again to requests with the same bytes, as `is_cacheable` or `find_response`
    says.
    `throttle_offset`: where encoded responses have the throttle time, from the end if it is negative; None: nowhere.
    `report_errors` returns whether the response has errors; Produce and Fetch return None.
    """

    decode: Callable[..., Any]
    handle: Handle
    fail: Callable[[RequestContext, Any, KafkaError], Any]
    encode: Callable[[Any, int], Body]
    append: Callable[[Any, int, list[Any], Callable[[], None]], object]
    report_errors: Callable[[RequestContext, Any, Any], bool | None]
    response_type: type
    stats: RequestStats
    is_flexible: bool
    has_flexible_response_header: bool
    overlap: Overlap
    is_cacheable: Callable[[Services, Any], bool] | None = None
    find_response: Callable[[Services, bytes], Body | None] | None = None
    keep_response: Callable[[Services, bytes, Any, Any, Any], None] | None = None
    may_be_cached: bool = False
    runs_in_turns: bool = False
    responds_in_turns: bool = False
    is_large_by_size: bool = True
    throttle_offset: int | None = None


@dataclass(slots=True, eq=False)
class RequestContext:
    """One request in progress.

    `client_id` may be None, as in the request header. `received_ns`: the time at which its last byte arrived
    (monotonic). `body`: the encoded response, once it is complete. `delayed`: the handler's DelayedResponse, until it
    is complete. `in_turns`: whether it is served in turns. `charge`: None if no quota applies to the client.
    """

    connection: RequestConnection
    handler: ApiHandler
    version: int
    correlation_id: int
    client_id: str | None
    received_ns: int
    body: Body | None = None
    delayed: DelayedResponse[Any] | None = None
    in_turns: bool = False
    charge: RequestCharge | None = None

    @property
    def api_key(self) -> int:
        return self.handler.stats.api_key

    @property
    def peer(self) -> str:
        """The client's "host:port"."""
        return self.connection.peer

    @property
    def host(self) -> str:
        """The client's address."""
        return self.peer.rpartition(":")[0]

    @property
    def requester(self) -> tuple[Principal, str]:
        """Whose request this is, and from which address: by these the controller decides what it may do."""
        return (self.principal if self.peer_broker is None else BROKER_PRINCIPAL), self.host

    @property
    def listener(self) -> str:
        """The name of the listener, whose addresses of brokers the response has."""
        return self.connection.identity.listener

    @property
    def principal(self) -> Principal:
        return self.connection.identity.principal

    @property
    def peer_broker(self) -> tuple[int, int] | None:
        """(broker id, broker epoch) of the broker whose request this is, None for a client's."""
        return self.connection.identity.peer_broker

    @property
    def forwarded_by(self) -> tuple[int, int] | None:
        """(broker id, broker epoch) of the broker that has forwarded this request of a client."""
        return self.connection.identity.forwarded_by

    def access(self, services: Services) -> Access | None:
        """Return what the request may do; None if there is no authorizer, and everything is allowed.

        The rules may change while a request waits: then `access.rules is not services.authorizer.rules`.
        """
        authorizer = services.authorizer
        if authorizer is None:
            return None
        connection = self.connection
        access = connection.access
        if access is None or access.rules is not authorizer.rules:
            identity = connection.identity
            if identity.peer_broker is not None:
                access = authorizer.broker_access
            else:
                access = authorizer.access(identity.principal, self.host)
            connection.access = access
        return access

    def authorized_operations(self, services: Services, resource_type: ResourceType, name: str) -> int:
        """Return what the client may do with a resource, as a bit set for a response; 0 if it may not describe it."""
        access = self.access(services)
        if access is None:
            return ALL_OPERATIONS[resource_type]
        if not access.allows(Operation.DESCRIBE, resource_type, name):
            return 0
        return access.operations(resource_type, name)

    @property
    def client_host(self) -> str:
        """The client's address as Kafka prints it in group descriptions."""
        return f"/{self.host}"


def mutation_quota(services: Services, context: RequestContext, strict_from: int) -> MutationQuota:
    """Return the quota of a request that changes partitions. It is strict from a version on."""
    now_ms = services.environment.clock.mono_ms()
    buckets = services.quotas.buckets_of(context.principal.name, context.client_id, now_ms)
    bucket = None if buckets is None else buckets.mutation
    return MutationQuota(bucket, context.version >= strict_from, now_ms)


async def complete_response(handle: Handle, services: Services, context: RequestContext, request: Any) -> Any:
    """Return the complete response to a request that did not arrive over the connection that it stands for."""
    try:
        response = handle(services, context, request)
        return await response if isinstance(response, Awaitable) else response
    except KafkaError as error:
        return context.handler.fail(context, request, error)


def sender(context: RequestContext) -> dict[str, object]:
    """Return the fields of the audit log that say who has sent a request."""
    api = ALL_APIS[ApiKey(context.api_key)].name
    principal, host = context.requester
    return {"principal": str(principal), "host": host, "client": context.client_id, "api": api}
