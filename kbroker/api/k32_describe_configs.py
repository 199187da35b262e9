"""DescribeConfigs (key 32), versions 1 to 4: the configs of topics, brokers, groups, client metrics and broker loggers.

- configuration_keys, unless it is null or empty, selects configs by name.
- Synonyms are returned if the request includes them, as is documentation (version 3). Version 3 also returns types.
- Values of sensitive configs are never returned; the source of a view, only to a client that may describe it.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from kbroker.api.authorization import Request, each
from kbroker.api.config_resources import invalid_request, parse_node_id, refuse_resource
from kbroker.api.context import Handle, RequestContext, Services
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.authorization.authorizer import Access
from kbroker.common import KafkaError
from kbroker.config.alter import logger_levels
from kbroker.config.config_def import ConfigResourceType
from kbroker.config.describe import (
    ConfigEntry,
    ConfigSource,
    ConfigTexts,
    describe_broker,
    describe_broker_defaults,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from kbroker.config.queue_configs import VIEW_OF
from kbroker.metadata.topics.topic_names import validate_topic_name
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

# A topic has 8 KB of configs with their documentation, which takes a millisecond. A broker has much more.
RUNS_IN_TURNS = True

# By the configs that a topic overrides, and the names in the request.
TopicConfigs = dict[tuple[frozenset[tuple[str, str]], frozenset[str]], list[DescribeConfigsResourceResult]]


def handle(services: Services, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    # Each as often as it is named, but equal ones are in memory once: a broker has 100 KB of configs.
    known: dict[tuple[int, str, tuple[str, ...]], DescribeConfigsResult] = {}
    # Most topics have the configs of others.
    topics: TopicConfigs = {}
    results = []
    for resource in paced(request.resources):
        key = resource.resource_type, resource.resource_name, tuple(resource.configuration_keys or ())
        result = known.get(key)
        if result is None:
            result = known[key] = _result(services, context.access(services), request, resource, topics)
        results.append(result)
    return DescribeConfigsResponse(results=results)


def authorize(checked: Request, handle: Handle) -> Any:
    return each("resources", partial(refuse_resource, operation=Operation.DESCRIBE_CONFIGS))(checked, handle)


def failed_response(
    context: RequestContext, request: DescribeConfigsRequest, error: KafkaError
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_failed(resource, error) for resource in paced(request.resources)])


def is_cacheable(services: Services, request: DescribeConfigsRequest) -> bool:
    """Return whether the response depends only on the image and the config, which do not have logger levels."""
    return all(resource.resource_type != ConfigResourceType.BROKER_LOGGER for resource in request.resources)


def _result(
    services: Services,
    access: Access | None,
    request: DescribeConfigsRequest,
    resource: DescribeConfigsResource,
    topics: TopicConfigs,
) -> DescribeConfigsResult:
    """Describe a resource. `topics`: the configs of the topics that the request has named before."""
    result = _failed(resource, KafkaError(ErrorCode.NONE))
    names = frozenset(resource.configuration_keys or ())
    try:
        if resource.resource_type == ConfigResourceType.BROKER_LOGGER:
            configs = _logger_configs(services, resource.resource_name)
            result.configs = [config for config in configs if not names or config.name in names]
        elif resource.resource_type == ConfigResourceType.TOPIC:
            overrides = _topic_overrides(services, resource.resource_name)
            key = frozenset(overrides.items()), names
            if key not in topics:
                topics[key] = _configs(request, describe_topic(overrides, services.config), names)
                source = overrides.get(VIEW_OF, "")
                if source and access and not access.allows(Operation.DESCRIBE, ResourceType.TOPIC, source):
                    _hide_source(topics[key])
            result.configs = topics[key]
        else:
            entries = _entries(services, resource.resource_type, resource.resource_name)
            result.configs = _configs(request, entries, names)
    except KafkaError as error:
        return _failed(resource, error)
    return result


def _hide_source(configs: list[DescribeConfigsResourceResult]) -> None:
    for config in configs:
        if config.name == VIEW_OF:
            config.value, config.synonyms = None, []


def _failed(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code,
        error_message=error.message or "",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )


def _topic_overrides(services: Services, name: str) -> ConfigTexts:
    """Return the configs that a topic overrides. Raises KafkaError."""
    validate_topic_name(name)
    if name not in services.metadata.topics:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return services.metadata.overrides(ConfigResourceType.TOPIC, name)


def _entries(services: Services, resource_type: int, name: str) -> Sequence[ConfigEntry]:
    """Describe a resource other than a topic or a broker's loggers. Raises KafkaError."""
    config, metadata = services.config, services.metadata
    if resource_type == ConfigResourceType.BROKER:
        if not name:
            return describe_broker_defaults(config)
        _check_node_id(services, name, " or empty string,")
        return describe_broker(config)
    if resource_type == ConfigResourceType.GROUP:
        if not name:
            raise invalid_request("Group name must not be empty")
        return describe_group(metadata.overrides(resource_type, name), config)
    if resource_type == ConfigResourceType.CLIENT_METRICS:
        if not name:
            raise invalid_request("Client metrics subscription name must not be empty")
        return describe_client_metrics(metadata.overrides(resource_type, name))
    raise invalid_request(f"Unknown resource type {resource_type}")


def _configs(
    request: DescribeConfigsRequest, entries: Iterable[ConfigEntry], names: frozenset[str]
) -> list[DescribeConfigsResourceResult]:
    """Return the configs with these names, or all if there are none."""
    return [
        _config(entry, request.include_synonyms, request.include_documentation)
        for entry in entries
        if not names or entry.key.name in names
    ]


def _config(entry: ConfigEntry, include_synonyms: bool, include_documentation: bool) -> DescribeConfigsResourceResult:
    key = entry.key
    return DescribeConfigsResourceResult(
        name=key.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=key.is_sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if include_synonyms else ())
        ],
        config_type=key.type,
        documentation=key.documentation if include_documentation else None,
    )


def _logger_configs(services: Services, name: str) -> list[DescribeConfigsResourceResult]:
    if not name:
        raise invalid_request("Broker id must not be empty")
    _check_node_id(services, name, "")
    return [
        DescribeConfigsResourceResult(name=logger, value=level, config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG)
        for logger, level in logger_levels().items()
    ]


def _check_node_id(services: Services, name: str, alternative: str) -> None:
    node_id = parse_node_id(name)
    if node_id is None:
        raise invalid_request(f"Broker id must be an integer, but it is: {name}")
    if node_id != services.node_id:
        raise invalid_request(f"Unexpected broker id, expected {services.node_id}{alternative} but received {name}")
