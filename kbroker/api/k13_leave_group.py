"""LeaveGroup (key 13), versions 0 to 5: leave a group.

- Version 3 adds requests for several members, each with its own result, also by instance id only (KIP-345).
- Before version 3 the result of the member is the result of the request.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_groups import ClassicGroups
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse

SEVERAL_MEMBERS_VERSION = 3


async def handle(services: Services, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    has_several = context.version >= SEVERAL_MEMBERS_VERSION
    members = request.members if has_several else [MemberIdentity(member_id=request.member_id)]
    try:
        errors = await services.groups.write(
            request.group_id, lambda shard: shard.kind(ClassicGroups).leave_group(request.group_id, members)
        )
    except KafkaError as error:
        return LeaveGroupResponse(error_code=error.code)
    if not has_several:
        return LeaveGroupResponse(error_code=errors[0])
    results = zip(members, errors, strict=True)
    return LeaveGroupResponse(members=[_response(member, error) for member, error in paced(results)])


def _response(member: MemberIdentity, error: ErrorCode) -> MemberResponse:
    return MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error)
