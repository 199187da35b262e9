"""LeaveGroup (key 13), versions 0 to 5: give up membership.

- Several members at once from version 3 on, each with its own result, also by instance id alone (KIP-345).
- Before, the one member's result is the answer's.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.requests import LeavingMember
from protocol.errors import ErrorCode
from protocol.messages.k13_leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse

SEVERAL_MEMBERS_VERSION = 3


async def handle(services: Services, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
    if not request.group_id:
        return LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    leavers = [LeavingMember(member.member_id, member.group_instance_id, member.reason) for member in request.members]
    if context.version < SEVERAL_MEMBERS_VERSION:
        leavers = [LeavingMember(request.member_id)]
    try:
        errors = await services.groups.leave(request.group_id, leavers)
    except KafkaError as refusal:
        return LeaveGroupResponse(error_code=refusal.code)
    if context.version < SEVERAL_MEMBERS_VERSION:
        return LeaveGroupResponse(error_code=errors[0])
    return LeaveGroupResponse(
        members=[
            MemberResponse(member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=error)
            for leaver, error in zip(leavers, errors, strict=True)
        ]
    )
