"""IncrementalAlterConfigs (key 44), versions 0 and 1: set, delete, append to or subtract from single configs.

Each resource succeeds or fails by itself; within one, all the changes are made or none. The answer comes when
this broker follows the new values. A resource that is named twice is refused both times.
"""

from kbroker.api.config_resources import Alteration, alter_each
from kbroker.api.context import RequestContext, Services
from kbroker.config.alter import AlterConfigOp
from protocol.errors import ErrorCode
from protocol.messages.k44_incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    wanted = [
        Alteration(
            resource.resource_type,
            resource.resource_name,
            [AlterConfigOp(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    errors = await alter_each(services, wanted, replace=False, validate_only=request.validate_only)
    return IncrementalAlterConfigsResponse(
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
