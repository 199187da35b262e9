"""Requests that only the controller can handle: a broker that is not the controller forwards them (KIP-590).

So a client may send them to any broker, as with Kafka. The handlers (kNN_*.py) are the same on both brokers. The
response is the controller's; if there is none within request.timeout.ms, it has the error REQUEST_TIMED_OUT.

Configs are special: only a broker itself can check its configs, and only it has its loggers. So it validates its own
configs before it forwards a change, and never forwards requests about loggers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kbroker.api.context import awaited
from kbroker.api.response_errors import error_fields, errors_of
from kbroker.common import KafkaError
from kbroker.config.config_resource import ConfigResourceType
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import message_classes

if TYPE_CHECKING:
    from kbroker.api.context import RequestContext, Services
    from kbroker.interbroker.controller_channel import ControllerChannel
    from protocol.schema.message import Message

_PLAN_APIS = (
    ApiKey.CREATE_REASSIGNMENT_PLAN,
    ApiKey.DESCRIBE_REASSIGNMENT_PLAN,
    ApiKey.CANCEL_REASSIGNMENT_PLAN,
)
FORWARDED_APIS = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UPDATE_FEATURES,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.REMOVE_PARTITIONS,
        *_PLAN_APIS,
    }
)
_WITH_ONE_ERROR = frozenset(
    {
        ApiKey.UPDATE_FEATURES,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.REMOVE_PARTITIONS,
        *_PLAN_APIS,
    }
)
_CONFIG_APIS = frozenset({ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS})

Handle = Callable[["Services", "RequestContext", Any], Any]


def forwarding(key: ApiKey, handle: Handle) -> Handle:
    """Return the handler that forwards a request unless this broker is the controller."""

    def handle_or_forward(services: Services, context: RequestContext, request: Any) -> Any:
        channel = services.controller_channel
        if channel is None:
            return handle(services, context, request)
        return _handle_or_forward(services, channel, context, key, handle, request)

    return handle_or_forward


async def _handle_or_forward(
    services: Services, channel: ControllerChannel, context: RequestContext, key: ApiKey, handle: Handle, request: Any
) -> Message:
    if services.controller.is_elected:
        response: Message = await awaited(handle(services, context, request))
        if not is_not_controller(response):
            return response
    if key in _CONFIG_APIS:
        return await _forward_configs(services, channel, context, key, handle, request)
    return await _forward(services, channel, context, key, request)


def is_not_controller(response: Message) -> bool:
    """Return whether any error code of a response is NOT_CONTROLLER."""
    fields = error_fields(type(response))
    return fields is not None and any(
        error.code == ErrorCode.NOT_CONTROLLER for error in errors_of(fields, None, response)
    )


async def _forward(
    services: Services, channel: ControllerChannel, context: RequestContext, key: ApiKey, request: Message
) -> Message:
    client_host = context.peer.rpartition(":")[0]
    timeout_ms = services.config.request_timeout_ms
    try:
        return await channel.forward(
            request, context.version, context.client_id, context.principal, client_host, timeout_ms
        )
    except KafkaError as error:
        return failed_response(key, context.version, request, error)


async def _forward_configs(
    services: Services, channel: ControllerChannel, context: RequestContext, key: ApiKey, handle: Handle, request: Any
) -> Message:
    """Alter loggers and validate this broker's configs here. Forward all other resources that are not refused."""
    rows: dict[int, Any] = {}
    here = [resource for resource in request.resources if _is_refused_or_logger(services, resource)]
    own = [resource for resource in request.resources if _is_own(services, resource)]
    for resources, validate_only in ((here, request.validate_only), (own, True)):
        if resources:
            part = type(request)(resources=resources, validate_only=validate_only)
            response = await awaited(handle(services, context, part))
            rows.update(zip(map(id, resources), response.responses, strict=True))
    forwarded = [
        resource for resource in request.resources if (row := rows.get(id(resource))) is None
        or (not row.error_code and _is_own(services, resource))
    ]  # fmt: skip
    if forwarded:
        part = type(request)(resources=forwarded, validate_only=request.validate_only)
        response = await _forward(services, channel, context, key, part)
        rows.update(zip(map(id, forwarded), response.responses, strict=True))  # type: ignore[attr-defined]
    response_class = message_classes(key)[1]
    return response_class(responses=[rows[id(resource)] for resource in request.resources])


def _is_refused_or_logger(services: Services, resource: Any) -> bool:
    """Return whether a resource is another broker, which is an error, or loggers, which are not forwarded."""
    if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
        return True
    is_broker = resource.resource_type == ConfigResourceType.BROKER
    return is_broker and resource.resource_name not in ("", str(services.node_id))


def _is_own(services: Services, resource: Any) -> bool:
    """Return whether a resource is the config of this broker."""
    return (resource.resource_type, resource.resource_name) == (ConfigResourceType.BROKER, str(services.node_id))


# Responses without the controller.


def failed_response(key: ApiKey, version: int, request: Any, error: KafkaError) -> Message:
    """Return the response in which everything that was requested has this error, as in Kafka."""
    response_class = message_classes(key)[1]
    fields = {"error_code": error.code, "error_message": error.message}
    if key in _WITH_ONE_ERROR:
        return response_class(**fields)
    if key is ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        return _failed_reassignments(request, error)
    if key is ApiKey.LIST_PARTITION_REASSIGNMENTS:
        return _unlisted_reassignments(request, error)
    if key is ApiKey.ELECT_LEADERS:
        return _failed_elections(version, request, error)
    if key in _CONFIG_APIS:
        resources = [(resource.resource_type, resource.resource_name) for resource in request.resources]
        row = _row_class(response_class, "responses")
        return response_class(
            responses=[row(resource_type=kind, resource_name=name, **fields) for kind, name in resources]
        )
    if key is ApiKey.DELETE_TOPICS:
        row = _row_class(response_class, "responses")
        named = [row(name=name, **fields) for name in request.topic_names]
        states = [row(name=topic.name, topic_id=topic.topic_id, **fields) for topic in request.topics]
        return response_class(responses=[*named, *states])
    field = "topics" if key is ApiKey.CREATE_TOPICS else "results"
    row = _row_class(response_class, field)
    return response_class(**{field: [row(name=topic.name, **fields) for topic in request.topics]})


def _failed_elections(version: int, request: Any, error: KafkaError) -> Message:
    from protocol.messages.k43_elect_leaders import ElectLeadersResponse, PartitionResult, ReplicaElectionResult

    results = [
        ReplicaElectionResult(
            topic=topic.topic,
            partition_result=[
                PartitionResult(partition_id=index, error_code=error.code, error_message=error.message)
                for index in topic.partitions
            ],
        )
        for topic in request.topic_partitions or ()
    ]
    return ElectLeadersResponse(error_code=error.code if version else 0, replica_election_results=results)


def _failed_reassignments(request: Any, error: KafkaError) -> Message:
    from kbroker.api.k45_alter_partition_reassignments import failed_response as failed_reassignments

    return failed_reassignments(request, error)


def _unlisted_reassignments(request: Any, error: KafkaError) -> Message:
    from kbroker.api.k46_list_partition_reassignments import failed_response as unlisted_reassignments

    return unlisted_reassignments(request, error)


def _row_class(response_class: type[Message], field: str) -> Any:
    return response_class.__rows__[field].type[0]
