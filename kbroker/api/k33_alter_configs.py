"""AlterConfigs (key 33), versions 0 to 2: replace all the overrides of each resource by the given ones.

Deprecated since KIP-339, which brought IncrementalAlterConfigs; older clients still send it. A resource that
is named twice is refused both times (Kafka 4.3.1 never answers that request).
"""

from kbroker.api.config_resources import Alteration, alter_each
from kbroker.api.context import RequestContext, Services
from kbroker.config.alter import set_ops
from protocol.errors import ErrorCode
from protocol.messages.k33_alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)


async def handle(services: Services, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    wanted = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            set_ops((config.name, config.value) for config in resource.configs),
        )
        for resource in request.resources
    ]
    errors = await alter_each(services, wanted, replace=True, validate_only=request.validate_only)
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=error.code if error else ErrorCode.NONE,
                error_message=error.message if error else None,
                resource_type=alteration.kind,
                resource_name=alteration.name,
            )
            for alteration, error in zip(wanted, errors, strict=True)
        ]
    )
