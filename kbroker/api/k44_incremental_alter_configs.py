"""IncrementalAlterConfigs (key 44), versions 0 and 1: set, delete, append to or subtract from single configs (KIP-339).

- Each resource is altered independently; either all or none of its changes are made.
- The response is sent when this broker uses the new values.
- A resource that is named twice gets INVALID_REQUEST each time.
"""

from kbroker.api.config_resources import ResourceAlteration, alter_resources
from kbroker.api.context import RequestContext, Services
from kbroker.api.large_responses import MAX_ALTERED_AT_ONCE
from kbroker.common import KafkaError
from kbroker.config.alter import AlterConfigOp
from kbroker.runtime.slices import each, in_slices
from protocol.errors import ErrorCode
from protocol.messages.k44_incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)


async def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    slices = context.slices
    alterations = await in_slices(slices, each(_alteration, request.resources))
    errors = await alter_resources(
        services,
        alterations,
        replace=False,
        validate_only=request.validate_only,
        slices=slices,
        node_id=context.peer_broker[0] if context.peer_broker else None,
    )
    responses = await in_slices(slices, each(_response, zip(alterations, errors, strict=True)))
    return IncrementalAlterConfigsResponse(responses=responses)


def is_large(services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest) -> bool:
    return len(request.resources) > MAX_ALTERED_AT_ONCE


def _alteration(resource: AlterConfigsResource) -> ResourceAlteration:
    ops = [AlterConfigOp(config.name, config.config_operation, config.value) for config in resource.configs]
    return ResourceAlteration(resource.resource_type, resource.resource_name, ops)


def _response(result: tuple[ResourceAlteration, KafkaError | None]) -> AlterConfigsResourceResponse:
    alteration, error = result
    return AlterConfigsResourceResponse(
        error_code=error.code if error else ErrorCode.NONE,
        error_message=error.message if error else None,
        resource_type=alteration.type,
        resource_name=alteration.name,
    )
