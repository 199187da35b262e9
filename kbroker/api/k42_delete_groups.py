"""DeleteGroups (key 42), versions 0 to 2: delete groups without members, and their offsets."""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from protocol.errors import ErrorCode
from protocol.messages.k42_delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(services: Services, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    # A group that is named twice has one result.
    group_ids = dict.fromkeys(request.groups_names)
    return DeleteGroupsResponse(
        results=[DeletableGroupResult(group_id=id, error_code=await _delete(services, id)) for id in group_ids]
    )


async def _delete(services: Services, group_id: str) -> ErrorCode:
    try:
        await services.groups.delete_group(group_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
