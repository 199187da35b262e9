"""Requests that did not arrive over a client's connection: the broker's own, and those that another one forwarded."""

from functools import cache
from typing import cast

from kbroker.api.context import (
    UNKNOWN_SOFTWARE,
    ApiHandler,
    ErrorListener,
    Identity,
    RequestContext,
    Services,
    complete_response,
)
from kbroker.api.dispatch import load_handler
from kbroker.authorization.authorizer import Access
from protocol.apis import ALL_APIS
from protocol.schema.message import Message, message_info


class _IgnoreErrors:
    """The errors of a forwarded request are reported by the broker that has forwarded it."""

    def report_error(
        self, context: RequestContext, code: int, count: int, message: str | None, subject: dict[str, object]
    ) -> None: ...

    def report_denied(self, context: RequestContext, code: int, subject: dict[str, object]) -> None: ...


_IGNORE_ERRORS = _IgnoreErrors()


class DetachedConnection:
    """Stands for the connection of such a request."""

    __slots__ = ("access", "client_software", "identity", "peer", "producer_since", "sasl")

    def __init__(self, peer: str, identity: Identity) -> None:
        self.producer_since: int | None = None
        self.sasl: None = None
        self.client_software = UNKNOWN_SOFTWARE
        self.access: Access | None = None
        self.peer = peer
        self.identity = identity

    @property
    def errors(self) -> ErrorListener:
        return _IGNORE_ERRORS

    def hold(self, size: int) -> None: ...

    def close(self, reason: str, context: RequestContext | None = None, **detail: object) -> None: ...


@cache
def handler_of(api_key: int, version: int, *, authorizes: bool) -> ApiHandler | None:
    """Return the handler that does not forward; None if the version is not served."""
    api = ALL_APIS.get(api_key)
    if api is None or not api.serves(version):
        return None
    return load_handler(api.key, version, forwards=False, authorizes=authorizes)


async def handle_locally(services: Services, request: Message, version: int, peer_broker: tuple[int, int]) -> Message:
    """Handle a request of this broker to itself, as if it had come over a connection between brokers."""
    api_key = message_info(type(request)).key
    assert api_key is not None
    handler = handler_of(api_key, version, authorizes=False)
    assert handler is not None
    identity = Identity(services.config.inter_broker_listener_name, peer_broker=peer_broker)
    connection = DetachedConnection("local:0", identity)
    context = RequestContext(connection, handler, version, 0, None, services.environment.clock.mono_ns())
    return cast(Message, await complete_response(handler.handle, services, context, request))
