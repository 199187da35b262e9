"""SyncGroup in every version."""

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k14_sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from tests.unit.support.group_coordinator import Harness


@pytest.mark.parametrize("version", range(6))
def test_every_version_returns_the_assignment(group_broker: Harness, version: int) -> None:
    member_id = group_broker.join_group()
    request = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=member_id,
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"A")],
    )
    if version >= 5:
        request.protocol_type, request.protocol_name = "consumer", "range"
    response = group_broker.call(request, version)
    assert (response.error_code, response.assignment) == (0, b"A")
    protocol = (response.protocol_type, response.protocol_name)
    assert protocol == (("consumer", "range") if version >= 5 else (None, None))


@pytest.mark.parametrize("version", range(6))
def test_a_group_of_another_broker(group_broker: Harness, version: int) -> None:
    group_broker.lose_group()
    request = SyncGroupRequest(group_id="g")
    if version >= 5:
        request.protocol_type, request.protocol_name = "consumer", "range"
    assert group_broker.call(request, version).error_code == ErrorCode.NOT_COORDINATOR
