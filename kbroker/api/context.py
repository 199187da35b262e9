"""What a handler may use, and the request that it serves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kbroker.common import Buffer
from protocol.fast.fetch import Records

if TYPE_CHECKING:
    from kbroker.api.dispatch import ApiHandler
    from kbroker.config import BrokerConfig
    from kbroker.coordinator.group.group_coordinator import GroupCoordinator
    from kbroker.coordinator.transaction.marker_writer import TransactionMarkerWriter
    from kbroker.coordinator.transaction.transaction_coordinator import TransactionCoordinator
    from kbroker.metadata.controller import Controller
    from kbroker.metadata.image import MetadataImage
    from kbroker.metadata.producer_id_manager import ProducerIdManager
    from kbroker.replica.fetch.fetch_manager import FetchManager
    from kbroker.replica.replica_manager import ReplicaManager
    from kbroker.runtime.environment import Environment


@dataclass(slots=True)
class Services:
    """The rooms below the API, assembled by broker.py."""

    node_id: int
    config: BrokerConfig
    environment: Environment
    metadata: MetadataImage
    controller: Controller
    replicas: ReplicaManager
    fetching: FetchManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    markers: TransactionMarkerWriter
    producer_ids: ProducerIdManager
    # Bytes of records given to consumers, by the topic's name or id as they ask with.
    bytes_out: dict[str | bytes, int] = field(default_factory=dict)


class Pending:
    """The type of PENDING: the answer comes later, through `RequestContext.respond`."""

    __slots__ = ()


PENDING = Pending()

Body = bytes | Sequence[Buffer | Records]


class ResponseChannel(Protocol):
    """Where answers go: the connection that the request came on."""

    peer: str

    def answered(self, context: RequestContext) -> None: ...

    def refused(
        self, context: RequestContext, code: int, count: int, reason: str | None, subject: dict[str, object]
    ) -> None: ...

    def hold(self, size: int) -> None:
        """The request keeps so many bytes more (or fewer) beyond its handler's return."""
        ...

    def close(self, reason: str, context: RequestContext | None = None, **detail: object) -> None: ...


class RequestContext:
    """One request in progress: its header, and the way back.

    `client_id` may be None, as the header's field. `received_ns`: when its last byte arrived (monotonic).
    `on_abandoned`, if a handler sets it, is called when the connection ends before the answer.
    """

    __slots__ = (
        "answers", "body", "client_id", "correlation_id", "entry", "on_abandoned", "received_ns", "version",
    )  # fmt: skip

    def __init__(
        self,
        answers: ResponseChannel,
        version: int,
        correlation_id: int,
        client_id: str | None,
        entry: ApiHandler,
        received_ns: int,
    ) -> None:
        self.answers = answers
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.entry = entry
        self.received_ns = received_ns
        self.body: Body | None = None
        self.on_abandoned: Callable[[], None] | None = None

    @property
    def api_key(self) -> int:
        return self.entry.stats.api_key

    @property
    def peer(self) -> str:
        """The client's "host:port"."""
        return self.answers.peer

    @property
    def client_host(self) -> str:
        """The client's address as Kafka prints it in group descriptions."""
        return "/" + self.peer.rpartition(":")[0]

    def refused(
        self, code: int, reason: str | None = None, count: int = 1, subject: dict[str, object] | None = None
    ) -> None:
        """Tell the log, and whoever counts, that the answer has an error code; `subject` is what it is about."""
        self.answers.refused(self, code, count, reason, subject or {})

    def respond(self, body: Body) -> None:
        """Answer a request whose handler returned PENDING; once."""
        self.body = body
        self.answers.answered(self)
