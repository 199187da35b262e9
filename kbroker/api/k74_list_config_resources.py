"""ListConfigResources (key 74), versions 0 and 1: the names of the resources whose configs can be described.

- Version 0 lists client metrics subscriptions only (KIP-714).
- Version 1 lists resources of the requested types, or of all types if it requests none: all topics and brokers, but
  only the groups and client metrics subscriptions that have configs (KIP-1142).
"""

from kbroker.api.context import RequestContext, Services
from kbroker.config.config_def import ConfigResourceType
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k74_list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

# The response has all topics, also to a small request.
RUNS_IN_TURNS = True


def handle(
    services: Services, context: RequestContext, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    if context.version == 0:
        types = {ConfigResourceType.CLIENT_METRICS}
    elif not set(request.resource_types) <= set(ConfigResourceType):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    else:
        types = set(map(ConfigResourceType, request.resource_types)) or set(ConfigResourceType)
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in sorted(types, reverse=True)
            for name in paced(_names(services, resource_type))
        ]
    )


def _names(services: Services, resource_type: ConfigResourceType) -> list[str]:
    metadata = services.metadata
    if resource_type is ConfigResourceType.TOPIC:
        return sorted(metadata.topics)
    if resource_type in (ConfigResourceType.BROKER, ConfigResourceType.BROKER_LOGGER):
        return [str(node_id) for node_id in sorted(metadata.brokers)]
    return metadata.resources_with_overrides(resource_type)
