"""DeleteGroups (key 42), versions 0 to 2: delete groups without members, and their offsets.

The states of a share group are at the share coordinators, and deleted before it. With ACLs each group needs DELETE.
"""

from kbroker.api.authorization import require
from kbroker.api.context import RequestContext, Services
from kbroker.authorization.acl import Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.coordinator.group.share.share_group import ShareGroup
from kbroker.runtime.turns import yield_if_due
from protocol.errors import ErrorCode
from protocol.messages.k42_delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


async def handle(services: Services, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    # A group that is named twice has one result.
    results: dict[str, DeletableGroupResult] = {}
    for group_id in request.groups_names:
        if group_id not in results:
            error = await _delete(services, context, group_id)
            results[group_id] = DeletableGroupResult(group_id=group_id, error_code=error)
        yield_if_due()
    return DeleteGroupsResponse(results=list(results.values()))


async def _delete(services: Services, context: RequestContext, group_id: str) -> ErrorCode:
    try:
        require(services, context, Operation.DELETE, ResourceType.GROUP, group_id)
        if isinstance(services.groups.group(group_id), ShareGroup):
            await services.share_group_states.delete_group_states(group_id)
        await services.groups.delete_group(group_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
