"""AlterConfigs (key 33), versions 0 to 2: replace all the overrides of each resource.

- Deprecated by KIP-339 in favour of IncrementalAlterConfigs; older clients still send it.
- A resource that is named twice gets INVALID_REQUEST each time. Kafka 4.3.1 never responds to such a request.
"""

from kbroker.api import config_resources
from kbroker.api.config_resources import ResourceAlteration, alter_resources
from kbroker.api.context import RequestContext, Services
from kbroker.config.alter import set_ops
from protocol.messages.k33_alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

FORWARDED = True
forward, failed_response = config_resources.forward, config_resources.failed_response
# Each resource takes about 0.3 ms.
RUNS_IN_TURNS = True


async def handle(services: Services, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    responses = await alter_resources(
        services,
        context,
        request.resources,
        _alteration,
        AlterConfigsResourceResponse,
        replace=True,
        validate_only=request.validate_only,
    )
    return AlterConfigsResponse(responses=responses)


def _alteration(resource: AlterConfigsResource) -> ResourceAlteration:
    ops = set_ops((config.name, config.value) for config in resource.configs)
    return ResourceAlteration(resource.resource_type, resource.resource_name, ops)
