"""LeaveGroup in every version, and when its response is sent."""

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k11_join_group import JoinGroupRequest, JoinGroupRequestProtocol
from protocol.messages.k13_leave_group import LeaveGroupRequest, MemberIdentity
from tests.unit.support.group_coordinator import Harness


def join(broker: Harness) -> str:
    """Create a group with one member, and return the member id."""
    protocols = [JoinGroupRequestProtocol(name="p")]
    request = JoinGroupRequest(group_id="g", session_timeout_ms=5000, protocol_type="consumer", protocols=protocols)
    task = broker.start(request, 0)
    broker.loop.pass_ms(1)
    return str(task.result().member_id)


@pytest.mark.parametrize("version", range(6))
def test_every_version_leaves(group_broker: Harness, version: int) -> None:
    member_id = join(group_broker)
    if version < 3:
        request = LeaveGroupRequest(group_id="g", member_id=member_id)
        assert group_broker.call(request, version).error_code == 0
        assert group_broker.call(request, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    else:
        members = [MemberIdentity(member_id=member_id), MemberIdentity(member_id="x", group_instance_id="i")]
        response = group_broker.call(LeaveGroupRequest(group_id="g", members=members), version)
        assert response.error_code == 0
        assert [(member.member_id, member.group_instance_id, member.error_code) for member in response.members] == [
            (member_id, None, 0),
            ("x", "i", ErrorCode.UNKNOWN_MEMBER_ID),
        ]
    group = group_broker.groups.group("g")
    assert group is not None
    assert not group.members


def test_the_response_waits_until_the_empty_group_is_committed(group_broker: Harness) -> None:
    member_id = join(group_broker)
    group_broker.log.held = True
    leave = group_broker.start(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)]), 3)
    assert not leave.done()
    group_broker.log.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    group_broker.loop.run_ready()
    assert leave.result().error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("version", range(6))
def test_a_group_of_another_broker(group_broker: Harness, version: int) -> None:
    group_broker.lose_group()
    assert group_broker.call(LeaveGroupRequest(group_id="g"), version).error_code == ErrorCode.NOT_COORDINATOR
