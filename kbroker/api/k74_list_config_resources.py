"""ListConfigResources (key 74), versions 0 and 1: the names of the resources whose configs can be described.

Version 0 lists client metrics subscriptions only (KIP-714). Version 1 lists the asked types, all when it asks
for none: topics and brokers whether or not anything is set for them, groups and subscriptions with configs.
"""

from kbroker.api.config_resources import CLIENT_METRICS_RESOURCE, LOGGER_RESOURCE, RESOURCE_TYPES
from kbroker.api.context import RequestContext, Services
from kbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from protocol.errors import ErrorCode
from protocol.messages.k74_list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


def handle(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    asked = request.resource_types or RESOURCE_TYPES
    if context.version == 0:
        asked = [CLIENT_METRICS_RESOURCE]
    if not set(asked) <= set(RESOURCE_TYPES):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=kind)
            for kind in RESOURCE_TYPES
            if kind in asked
            for name in _names(services, kind)
        ]
    )


def _names(services: Services, kind: int) -> list[str]:
    metadata = services.metadata
    if kind == TOPIC_RESOURCE:
        return sorted(metadata.topics)
    if kind in (BROKER_RESOURCE, LOGGER_RESOURCE):
        return [str(node) for node in sorted(metadata.brokers)]
    return metadata.config_resources(kind)
