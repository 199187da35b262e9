"""What a rule of an API is made of: the checks before its handler (the gate). The rules: authorization_rules.py.

A rule is a function that calls the handler, perhaps with a part of the request, or raises a KafkaError, which becomes
the response as if the handler had raised it. `load_handler` puts it around the handler; without an authorizer, and for
requests of brokers, it does not. So no path to a handler goes around its rule: requests that are cached, large, delayed
or forwarded call the same function. The broker that executes a forwarded request checks it, as that of the client.
"""

from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from functools import partial
from typing import Any, NamedTuple, TypeVar

from kbroker.api.context import Handle, RequestContext, Services
from kbroker.api.response_errors import list_of
from kbroker.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from kbroker.authorization.authorizer import Access
from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

T = TypeVar("T")


class Request(NamedTuple):
    """A request at the gate, and who sends it."""

    services: Services
    context: RequestContext
    access: Access
    body: Any


# Returns what the handler returns. Raises KafkaError.
Rule = Callable[[Request, Handle], Any]
# Returns why one element of a request is refused, or None.
Refusal = Callable[[Request, Any], KafkaError | None]

ERRORS = {
    ResourceType.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ResourceType.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ResourceType.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
# For `message`: the text that Kafka has for the error code.
DEFAULT_TEXT = ""


def authorized(rule: Rule, handle: Handle) -> Handle:
    """Return the handler behind its rule."""

    def check_and_handle(services: Services, context: RequestContext, body: Any) -> Any:
        access = context.access(services)
        assert access is not None, "there is no authorizer"
        return rule(Request(services, context, access, body), handle)

    return check_and_handle


def refusal(resource_type: ResourceType, message: str | None = None) -> KafkaError:
    """`message`: DEFAULT_TEXT, another text, or None for no text."""
    if message == DEFAULT_TEXT:
        message = f"{resource_type.name.replace('_', ' ').capitalize()} authorization failed."
    return KafkaError(ERRORS[resource_type], message)


def allows_on_cluster(access: Access, *operations: Operation) -> bool:
    """Return whether one of the operations on the cluster is allowed."""
    return any(access.allows(operation, ResourceType.CLUSTER, CLUSTER_NAME) for operation in operations)


# The kinds of rules.


def anybody(request: Request, handle: Handle) -> Any:
    """Every client may send the request."""
    return handle(request.services, request.context, request.body)


def cluster(*operations: Operation, has_text: bool = True) -> Rule:
    """The request needs one of the operations on the cluster."""
    text = f"The request needs {operations[0].name} permission." if has_text else None

    def check(request: Request, handle: Handle) -> Any:
        if not allows_on_cluster(request.access, *operations):
            raise refusal(ResourceType.CLUSTER, text)
        return anybody(request, handle)

    return check


def one(operation: Operation, resource_type: ResourceType, field: str, message: str | None = None) -> Rule:
    """The request needs the operation on the resource that a field names. Null names none."""

    def check(request: Request, handle: Handle) -> Any:
        name = getattr(request.body, field)
        if name is not None and not request.access.allows(operation, resource_type, name):
            raise refusal(resource_type, message)
        return anybody(request, handle)

    return check


def all_of(*rules: Rule) -> Rule:
    """The request goes through several rules, in this order."""
    first, *others = rules
    if not others:
        return first
    rest = all_of(*others)

    def check(request: Request, handle: Handle) -> Any:
        return first(request, lambda services, context, body: rest(request._replace(body=body), handle))

    return check


def every(elements: Callable[[Any], Iterable[Any]], refuse: Refusal) -> Rule:
    """The request is refused as a whole if one of the elements is that a function finds in it."""

    def check(request: Request, handle: Handle) -> Any:
        for element in paced(elements(request.body)):
            error = refuse(request, element)
            if error is not None:
                raise error
        return anybody(request, handle)

    return check


def each(elements: str, refuse: Refusal, *, handles_none: bool = False) -> Rule:
    """The handler gets the elements that are not refused. The others are rows with errors at the end of the response.

    `elements`: the list in the request. Its rows and those of the response to an error (`failed_response`) are in the
    only list of the response. `handles_none`: the handler is called even if all elements are refused.
    """

    def check(request: Request, handle: Handle) -> Any:
        services, context, _, body = request
        allowed, refused = [], []
        for element in paced(getattr(body, elements)):
            error = refuse(request, element)
            if error is None:
                allowed.append(element)
            else:
                failed = context.handler.fail(context, _with(body, elements, [element]), error)
                refused += getattr(failed, list_of(type(failed)))
        if not refused:
            return handle(services, context, body)
        if allowed or handles_none:
            return after(handle(services, context, _with(body, elements, allowed)), partial(_append, refused))
        return _with(failed, list_of(type(failed)), refused)

    return check


def may(
    operation: Operation,
    resource_type: ResourceType,
    field: str = "",
    message: str | None = None,
    on_cluster: Operation | None = None,
    id_field: str = "",
) -> Refusal:
    """Return the Refusal of elements whose resource the client has no right to.

    `field`: of the element, with the name or the topic id; empty if the element is the name. `id_field`: with the topic
    id, in versions without a name. `on_cluster`: an operation on the cluster that is enough for all.
    """

    def refuse(request: Request, element: Any) -> KafkaError | None:
        access = request.access
        key = getattr(element, field) if field else element
        name = request.services.metadata.topic_name(key or getattr(element, id_field) if id_field else key)
        # The handler reports unknown ids.
        if name is None or access.allows(operation, resource_type, name):
            return None
        if on_cluster is not None and allows_on_cluster(access, on_cluster):
            return None
        return refusal(resource_type, message)

    return refuse


def listed(
    elements: str,
    operation: Operation,
    resource_type: ResourceType,
    field: str,
    on_cluster: Operation | None = None,
) -> Rule:
    """The response lacks the elements of a list that the client may not see when it is complete.

    `on_cluster`: an operation on the cluster that is enough to see all.
    """

    def hide(request: Request, response: Any) -> Any:
        access = request.context.access(request.services) or request.access
        if on_cluster is not None and allows_on_cluster(access, on_cluster):
            return response
        visible = [
            element
            for element in paced(getattr(response, elements))
            if access.allows(operation, resource_type, getattr(element, field))
        ]
        return _with(response, elements, visible)

    return lambda request, handle: after(anybody(request, handle), partial(hide, request))


# Checks of handlers.


def require(
    services: Services,
    context: RequestContext,
    operation: Operation,
    resource_type: ResourceType,
    name: str,
    message: str | None = None,
) -> None:
    """Raise KafkaError if the client may not do this."""
    access = context.access(services)
    if access is not None and not access.allows(operation, resource_type, name):
        raise refusal(resource_type, message)


# Helpers.


def after(response: Any, finish: Callable[[Any], T]) -> T | Awaitable[T]:
    """Return the result of `finish` for the complete response."""
    return _after(response, finish) if isinstance(response, Awaitable) else finish(response)


async def _after(response: Awaitable[Any], finish: Callable[[Any], T]) -> T:
    return finish(await response)


def _with(message: Any, field: str, value: Any) -> Any:
    """Return a copy of a message with another value of a field."""
    changed = copy(message)
    setattr(changed, field, value)
    return changed


def _append(refused: list[Any], response: Any) -> Any:
    getattr(response, list_of(type(response))).extend(refused)
    return response
