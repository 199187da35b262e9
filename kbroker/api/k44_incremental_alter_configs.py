"""IncrementalAlterConfigs (key 44), versions 0 and 1: set, delete, append to or subtract from single configs (KIP-339).

- Each resource is altered independently; either all or none of its changes are made.
- The response is sent when this broker uses the new values.
- A resource that is named twice gets INVALID_REQUEST each time.
"""

from collections.abc import Sequence

from kbroker.api import config_resources
from kbroker.api.config_resources import alter_resources
from kbroker.api.context import RequestContext, Services
from kbroker.config.alter import AlterConfigOp
from protocol.messages.k44_incremental_alter_configs import (
    AlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

FORWARDED = True
forward, failed_response = config_resources.forward, config_resources.failed_response
authorize = config_resources.authorize_alteration
# Each resource takes about 0.3 ms.
RUNS_IN_TURNS = True


async def handle(
    services: Services, context: RequestContext, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    response: IncrementalAlterConfigsResponse = await alter_resources(services, context, request, _ops, replace=False)
    return response


def _ops(configs: Sequence[AlterableConfig]) -> Sequence[AlterConfigOp]:
    return [AlterConfigOp(config.name, config.config_operation, config.value) for config in configs]
