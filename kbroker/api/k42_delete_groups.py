"""DeleteGroups (key 42), versions 0 to 2: forget groups without members, and their offsets."""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from protocol.errors import ErrorCode
from protocol.messages.k42_delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(services: Services, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    # A group that is named twice is answered once.
    names = dict.fromkeys(request.groups_names)
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=name, error_code=await _delete(services, name)) for name in names]
    )


async def _delete(services: Services, group_id: str) -> ErrorCode:
    try:
        return await services.groups.delete(group_id)
    except KafkaError as refusal:
        return refusal.code
