"""DescribeConfigs (key 32), versions 1 to 4: configs of topics, brokers, groups, client metrics and loggers.

Version 3 adds types and documentation. Synonyms and documentation come only when they are asked for; a list
of keys, if there is one and it is not empty, selects configs. Values of sensitive configs are never sent.
"""

from collections.abc import Sequence

from kbroker.api.config_resources import (
    CLIENT_METRICS_RESOURCE,
    LOGGER_RESOURCE,
    invalid,
    node_number,
)
from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.config.broker_loggers import logger_levels
from kbroker.config.describe import (
    ConfigEntry,
    ConfigSource,
    describe_broker,
    describe_brokers,
    describe_client_metrics,
    describe_group,
    describe_topic,
)
from kbroker.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from kbroker.metadata.topics.topic_plans import validate_topic_name
from protocol.errors import ErrorCode
from protocol.messages.k32_describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)


def handle(services: Services, context: RequestContext, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_result(services, resource, request) for resource in request.resources])


def _result(
    services: Services, resource: DescribeConfigsResource, request: DescribeConfigsRequest
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        if resource.resource_type == LOGGER_RESOURCE:
            configs = _loggers(services, resource.resource_name)
        else:
            entries = _entries(services, resource.resource_type, resource.resource_name)
            configs = [_config(entry, request.include_synonyms, request.include_documentation) for entry in entries]
    except KafkaError as refusal:
        result.error_code = refusal.code
        result.error_message = refusal.message or ""
        return result
    keys = frozenset(resource.configuration_keys or ())
    result.configs = [config for config in configs if not keys or config.name in keys]
    return result


def _entries(services: Services, kind: int, name: str) -> Sequence[ConfigEntry]:
    config, metadata = services.config, services.metadata
    if kind == TOPIC_RESOURCE:
        validate_topic_name(name)
        if name not in metadata.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return describe_topic(metadata.overrides(kind, name), config)
    if kind == BROKER_RESOURCE:
        if not name:
            return describe_brokers(config)
        _check_node(services, name, " or empty string,")
        return describe_broker(config)
    if kind == GROUP_RESOURCE:
        if not name:
            raise invalid("Group name must not be empty")
        return describe_group(metadata.overrides(kind, name), config)
    if kind == CLIENT_METRICS_RESOURCE:
        if not name:
            raise invalid("Client metrics subscription name must not be empty")
        return describe_client_metrics(metadata.overrides(kind, name))
    raise invalid(f"Unknown resource type {kind}")


def _config(entry: ConfigEntry, synonyms: bool, documentation: bool) -> DescribeConfigsResourceResult:
    row = entry.row
    return DescribeConfigsResourceResult(
        name=row.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=row.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in (entry.synonyms if synonyms else ())
        ],
        config_type=row.type,
        documentation=row.doc if documentation else None,
    )


def _loggers(services: Services, name: str) -> list[DescribeConfigsResourceResult]:
    if not name:
        raise invalid("Broker id must not be empty")
    _check_node(services, name, "")
    return [
        DescribeConfigsResourceResult(name=logger, value=level, config_source=ConfigSource.LOGGER)
        for logger, level in logger_levels().items()
    ]


def _check_node(services: Services, name: str, alternative: str) -> None:
    number = node_number(name)
    if number is None:
        raise invalid(f"Broker id must be an integer, but it is: {name}")
    if number != services.node_id:
        raise invalid(f"Unexpected broker id, expected {services.node_id}{alternative} but received {name}")
