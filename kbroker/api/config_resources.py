"""Checks and changes of config resources, for the APIs with keys 32, 33, 44 and 74.

A broker serves its own configs and the default of all brokers (the empty name), but not the configs of other brokers.
Admin clients send a request about a broker to that broker. While it is away, any other broker may cordon it.

Only the controller writes configs, but only a broker itself can check its configs, and only it has its loggers. So it
validates its own configs before it forwards a change, and never forwards requests about loggers (`forward`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from kbroker.api.authorization import DEFAULT_TEXT, Request, allows_on_cluster, each, refusal
from kbroker.api.context import Handle, RequestContext, Services, complete_response
from kbroker.api.forwarding import Send
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.config.alter import (
    AlterConfigOp,
    alter_broker,
    alter_client_metrics,
    alter_group,
    alter_loggers,
    alter_topic,
)
from kbroker.config.config_def import ConfigResourceType
from kbroker.config.no_effect_warnings import no_effect_warnings
from kbroker.config.queue_configs import VIEW_CONFIGS, VIEW_OF
from kbroker.metadata.topics.topic_names import validate_topic_name
from kbroker.metadata.topics.topic_requests import check_topic_configs
from kbroker.runtime.event_log import EventLogger
from kbroker.runtime.turns import paced, yield_if_due
from kbroker.telemetry.subscriptions import MetricsSubscription
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import message_classes

log = EventLogger("kbroker.config")

Overrides = dict[str, str]


class ResourceAlteration(NamedTuple):
    """The changes of one resource. `type` is the number in the request, which may be unknown."""

    type: int
    name: str
    ops: Sequence[AlterConfigOp]


async def alter_resources(
    services: Services,
    context: RequestContext,
    request: Any,
    ops_of: Callable[[Any], Sequence[AlterConfigOp]],
    *,
    replace: bool,
) -> Any:
    """Alter each resource of a request independently, and respond. A resource that is named twice is not altered.

    `ops_of` returns the changes of its configs. `replace`: they apply to empty overrides, as in AlterConfigs.
    """
    # The broker that the client has sent the request to.
    node_id = context.forwarded_by[0] if context.forwarded_by else services.node_id
    alterations = [
        ResourceAlteration(resource.resource_type, resource.resource_name, ops_of(resource.configs))
        for resource in paced(request.resources)
    ]
    times_named = Counter((alteration.type, alteration.name) for alteration in paced(alterations))
    errors: list[KafkaError | None] = []
    for alteration in alterations:
        try:
            if times_named[alteration.type, alteration.name] > 1:
                raise invalid_request("Each resource must appear at most once.")
            await _alter(services, alteration, replace, request.validate_only, node_id)
            errors.append(None)
        except KafkaError as error:
            errors.append(error)
        yield_if_due()
    return _response(context, request, errors)


def _response(context: RequestContext, request: Any, errors: Iterable[KafkaError | None]) -> Any:
    """Return the response with the errors of the resources, whose rows are the same in both APIs."""
    response_class: Any = message_classes(context.api_key)[1]
    row = response_class.__rows__["responses"].type[0]
    return response_class(
        responses=[
            row(
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.message if error else None,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
            for resource, error in paced(zip(request.resources, errors, strict=False))
        ]
    )


async def _alter(
    services: Services, alteration: ResourceAlteration, replace: bool, validate_only: bool, node_id: int
) -> None:
    resource_type, name, ops = alteration
    if resource_type == ConfigResourceType.BROKER_LOGGER and not replace:
        _check_node_id(node_id, name)
        alter_loggers(ops, validate_only=validate_only)
        return
    decide = _override_change(services, alteration, replace, node_id)
    altered: Overrides = {}

    def alter_overrides(current: Overrides) -> Overrides:
        nonlocal altered
        altered = decide(current)
        return altered

    if validate_only:
        alter_overrides(services.metadata.overrides(resource_type, name))
        _check_topic_exists(services, resource_type, name)
        return
    await services.controller.alter_configs(resource_type, name, alter_overrides)
    changed = {op.name: altered[op.name] for op in ops if op.name in altered}
    for warning in no_effect_warnings(ConfigResourceType(resource_type), changed):
        log.warning("config without effect", reason=warning)


def _override_change(
    services: Services, alteration: ResourceAlteration, replace: bool, node_id: int
) -> Callable[[Overrides], Overrides]:
    """Check the resource's name, and return the function that alters its current overrides. Raises KafkaError.

    `replace`: the function starts with empty overrides.
    """
    resource_type, name, ops = alteration

    def start(current: Overrides) -> Overrides:
        return {} if replace else current

    if resource_type == ConfigResourceType.BROKER:
        if name and not _cordons_absent_broker(services, name, ops):
            _check_node_id(node_id, name)

        def alter(current: Overrides) -> Overrides:
            altered = alter_broker(start(current), ops, services.config, cluster_default=not name)
            if name == str(services.node_id) and any(".ssl." in op.name for op in ops):
                _check_certificates(services, altered)
            return altered

        return alter
    if resource_type == ConfigResourceType.TOPIC:
        if not name:
            raise invalid_request("Default topic resources are not allowed.")
        validate_topic_name(name)
        return lambda current: _alter_topic(name, current, ops, replace, services)
    if resource_type == ConfigResourceType.GROUP:
        if not name:
            raise invalid_request("Default group resources are not allowed.")
        return lambda current: alter_group(start(current), ops, services.config)
    if resource_type == ConfigResourceType.CLIENT_METRICS:
        if not name:
            raise invalid_request("Subscription name can't be empty")
        return lambda current: _alter_client_metrics(start(current), ops)
    raise invalid_request(f"Unknown resource type {resource_type}")


def _check_certificates(services: Services, altered: Overrides) -> None:
    """Raise KafkaError unless the listeners of this broker could use the certificates of its altered configs."""
    from kbroker.client.key_stores import KeyStoreError, server_context  # imported here to keep the startup fast

    config = services.config.with_dynamic(services.config.dynamic_default_configs, altered)
    for security in config.security.values():
        if security.tls is not None:
            try:
                server_context(*security.tls.context)
            except KeyStoreError as error:
                raise invalid_request(str(error)) from None


def _alter_topic(
    name: str, current: Overrides, ops: Sequence[AlterConfigOp], replace: bool, services: Services
) -> Overrides:
    altered = alter_topic(current, ops, services.config, replace=replace)
    check_topic_configs(name, altered)
    return altered


def _alter_client_metrics(current: Overrides, ops: Sequence[AlterConfigOp]) -> Overrides:
    altered = alter_client_metrics(current, ops)
    # Raises ConfigError for what cannot be used.
    MetricsSubscription(altered)
    return altered


def _check_topic_exists(services: Services, resource_type: int, name: str) -> None:
    if resource_type == ConfigResourceType.TOPIC and name not in services.metadata.topics:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist.")


def _cordons_absent_broker(services: Services, name: str, ops: Sequence[AlterConfigOp]) -> bool:
    """Return whether only cordoned.log.dirs of a broker that is away is altered (KIP-1066)."""
    is_absent = parse_node_id(name) in services.metadata.fenced_brokers
    return is_absent and bool(ops) and all(op.name == "cordoned.log.dirs" for op in ops)


def _check_node_id(node_id: int, name: str) -> None:
    named = parse_node_id(name)
    if named is None:
        raise invalid_request(f"Node id must be an integer, but it is: {name}")
    if named != node_id:
        raise invalid_request(f"Unexpected broker id, expected {node_id}, but received {name}")


def parse_node_id(name: str) -> int | None:
    """Return the id in the name of a broker resource, None if it is not an integer."""
    return int(name) if name.isascii() and name.removeprefix("-").isdigit() and len(name) < 12 else None


def invalid_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


# Rights.


def refuse_resource(request: Request, resource: Any, operation: Operation) -> KafkaError | None:
    """Return why the client has no right to the configs of a resource."""
    access, name = request.access, resource.resource_name
    if resource.resource_type == ConfigResourceType.TOPIC:
        type = ResourceType.TOPIC
    elif resource.resource_type == ConfigResourceType.GROUP:
        type = ResourceType.GROUP
    else:
        is_known = resource.resource_type in list(ConfigResourceType)
        is_allowed = not is_known or allows_on_cluster(access, operation)
        return None if is_allowed else refusal(ResourceType.CLUSTER, DEFAULT_TEXT)
    return None if access.allows(operation, type, name) else refusal(type, DEFAULT_TEXT)


def authorize_alteration(checked: Request, handle: Handle) -> Any:
    return each("resources", _refuse_alteration)(checked, handle)


def _refuse_alteration(request: Request, resource: Any) -> KafkaError | None:
    replaces = request.context.api_key == ApiKey.ALTER_CONFIGS
    if replaces and resource.resource_type == ConfigResourceType.BROKER_LOGGER:
        return None  # the handler refuses it
    error = refuse_resource(request, resource, Operation.ALTER_CONFIGS)
    if error is not None and resource.resource_type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        return refusal(ResourceType.CLUSTER)
    if error is None and resource.resource_type == ConfigResourceType.TOPIC:
        # Whoever alters the filter of a view chooses what can be read of its source.
        topic = request.services.metadata.topics.get(resource.resource_name)
        sources = {config.value for config in paced(resource.configs) if config.name == VIEW_OF and config.value}
        is_altered = replaces or any(config.name in VIEW_CONFIGS for config in paced(resource.configs))
        if topic is not None and topic.view_of and is_altered:
            sources.add(topic.view_of)
        if not all(request.access.allows(Operation.READ, ResourceType.TOPIC, source) for source in sources):
            return refusal(ResourceType.TOPIC, f"{VIEW_OF}: the source needs READ permission.")
    return error


# Brokers that are not the controller.


def failed_response(context: RequestContext, request: Any, error: KafkaError) -> Any:
    return _response(context, request, repeat(error))


async def forward(services: Services, context: RequestContext, request: Any, handle: Handle, send: Send) -> Any:
    """Alter loggers and validate this broker's configs here. Forward all other resources that are not refused."""
    rows: dict[int, Any] = {}
    here = [resource for resource in request.resources if _is_refused_or_logger(services, resource)]
    own = [resource for resource in request.resources if _is_own(services, resource)]
    for resources, validate_only in ((here, request.validate_only), (own, True)):
        if resources:
            part = type(request)(resources=resources, validate_only=validate_only)
            response = await complete_response(handle, services, context, part)
            rows.update(zip(map(id, resources), response.responses, strict=True))
    forwarded = [
        resource for resource in request.resources if (row := rows.get(id(resource))) is None
        or (not row.error_code and _is_own(services, resource))
    ]  # fmt: skip
    if forwarded:
        part = type(request)(resources=forwarded, validate_only=request.validate_only)
        try:
            response = await send(part)
        except KafkaError as error:
            response = failed_response(context, part, error)
        rows.update(zip(map(id, forwarded), response.responses, strict=True))
    response_class: Any = message_classes(context.api_key)[1]
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
