"""AlterConfigs (key 33), versions 0 to 2: replace all the overrides of each resource.

- Deprecated by KIP-339 in favour of IncrementalAlterConfigs; older clients still send it.
- A resource that is named twice gets INVALID_REQUEST each time. Kafka 4.3.1 never responds to such a request.
"""

from collections.abc import Sequence

from kbroker.api import config_resources
from kbroker.api.config_resources import alter_resources
from kbroker.api.context import RequestContext, Services
from kbroker.config.alter import AlterConfigOp, set_ops
from protocol.messages.k33_alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResponse

FORWARDED = True
forward, failed_response = config_resources.forward, config_resources.failed_response
authorize = config_resources.authorize_alteration
# Each resource takes about 0.3 ms.
RUNS_IN_TURNS = True


async def handle(services: Services, context: RequestContext, request: AlterConfigsRequest) -> AlterConfigsResponse:
    response: AlterConfigsResponse = await alter_resources(services, context, request, _ops, replace=True)
    return response


def _ops(configs: Sequence[AlterableConfig]) -> Sequence[AlterConfigOp]:
    return set_ops((config.name, config.value) for config in configs)
