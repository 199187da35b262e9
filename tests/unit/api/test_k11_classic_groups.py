"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup in every version."""

import re

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k11_classic_groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    LeaveGroupRequest,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from protocol.schema.message import Message
from tests.unit.support.group_coordinator import Harness

UUID4 = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def request_for(version: int, member_id: str = "") -> JoinGroupRequest:
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=1000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
    )
    if version >= 1:
        request.rebalance_timeout_ms = 2000
    return request


@pytest.mark.parametrize("version", range(10))
def test_every_version_joins(group_broker: Harness, version: int) -> None:
    task = group_broker.start(request_for(version), version, client="me")
    group_broker.loop.pass_ms(1)
    response = task.result()
    if version >= 4:
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        task = group_broker.start(request_for(version, response.member_id), version)
        group_broker.loop.pass_ms(1)
        response = task.result()
    assert re.fullmatch(f"me-{UUID4}", response.member_id)
    assert (response.error_code, response.generation_id, response.leader) == (0, 1, response.member_id)
    assert [(member.member_id, member.metadata) for member in response.members] == [(response.member_id, b"m")]
    assert response.protocol_type == ("consumer" if version >= 7 else None)
    group = group_broker.groups.group("g")
    assert group is not None
    assert group.members[response.member_id].rebalance_timeout_ms == (2000 if version else 1000)


def test_the_member_id_of_a_static_member_begins_with_its_instance_id(group_broker: Harness) -> None:
    request = request_for(5)
    request.group_instance_id = "i"
    task = group_broker.start(request, 5)
    group_broker.loop.pass_ms(1)
    assert re.fullmatch(f"i-{UUID4}", task.result().member_id)


def test_a_member_id_is_never_too_long_for_the_protocol(group_broker: Harness) -> None:
    request = request_for(5)
    request.group_instance_id = "\U0001d11e" * 8_191
    task = group_broker.start(request, 5)
    group_broker.loop.pass_ms(1)
    assert task.result().error_code == 0
    assert len(task.result().member_id.encode()) < 32_767


@pytest.mark.parametrize("version", range(10))
def test_errors_of_join_have_no_generation(group_broker: Harness, version: int) -> None:
    group_broker.lose_group()
    response = group_broker.call(request_for(version, "m"), version)
    assert (response.error_code, response.member_id) == (ErrorCode.NOT_COORDINATOR, "m")
    assert (response.generation_id, response.protocol_name, response.leader) == (-1, None if version >= 7 else "", "")


@pytest.mark.parametrize(("session_ms", "allowed"), [(99, False), (100, True), (60_000, True), (60_001, False)])
def test_the_session_timeout_has_bounds(group_broker: Harness, session_ms: int, allowed: bool) -> None:
    request = request_for(9)
    request.session_timeout_ms = session_ms
    expected = ErrorCode.MEMBER_ID_REQUIRED if allowed else ErrorCode.INVALID_SESSION_TIMEOUT
    assert group_broker.call(request, 9).error_code == expected


def test_the_first_of_two_equal_protocols_is_used(group_broker: Harness) -> None:
    request = request_for(3)
    request.protocols = [
        JoinGroupRequestProtocol(name=name, metadata=metadata)
        for name, metadata in (("a", b"1"), ("b", b"2"), ("a", b"3"))
    ]
    task = group_broker.start(request, 3)
    group_broker.loop.pass_ms(1)
    assert (task.result().protocol_name, task.result().members[0].metadata) == ("a", b"1")
    group = group_broker.groups.group("g")
    assert group is not None
    assert group.members[task.result().member_id].protocols == (("a", b"1"), ("b", b"2"))


@pytest.mark.parametrize("version", range(6))
def test_every_version_returns_the_assignment(group_broker: Harness, version: int) -> None:
    member_id = group_broker.join_group()
    request = with_protocol(SyncGroupRequest(
        group_id="g", generation_id=1, member_id=member_id,
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"A")],
    ), version)  # fmt: skip
    response = group_broker.call(request, version)
    assert (response.error_code, response.assignment) == (0, b"A")
    protocol = (response.protocol_type, response.protocol_name)
    assert protocol == (("consumer", "range") if version >= 5 else (None, None))


def with_protocol(request: SyncGroupRequest, version: int) -> SyncGroupRequest:
    if version >= 5:
        request.protocol_type, request.protocol_name = "consumer", "range"
    return request


@pytest.mark.parametrize("version", range(5))
def test_heartbeat_returns_errors(group_broker: Harness, version: int) -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert group_broker.call(request, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert group_broker.call(HeartbeatRequest(), version).error_code == ErrorCode.INVALID_GROUP_ID


@pytest.mark.parametrize("version", range(6))
def test_every_version_leaves(group_broker: Harness, version: int) -> None:
    member_id = group_broker.join_group()
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
    member_id = group_broker.join_group()
    group_broker.log.held = True
    leave = group_broker.start(LeaveGroupRequest(group_id="g", members=[MemberIdentity(member_id=member_id)]), 3)
    assert not leave.done()
    group_broker.log.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    group_broker.loop.run_ready()
    assert leave.result().error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize(
    ("request_class", "version"),
    [
        *((HeartbeatRequest, version) for version in range(5)),
        *((LeaveGroupRequest, version) for version in range(6)),
        *((SyncGroupRequest, version) for version in range(6)),
    ],
)
def test_a_group_of_another_broker(group_broker: Harness, request_class: type[Message], version: int) -> None:
    group_broker.lose_group()
    request = request_class(group_id="g")
    if isinstance(request, SyncGroupRequest):
        request = with_protocol(request, version)
    assert group_broker.call(request, version).error_code == ErrorCode.NOT_COORDINATOR
