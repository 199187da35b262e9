"""Heartbeat in every version."""

import pytest

from protocol.errors import ErrorCode
from protocol.messages.k12_heartbeat import HeartbeatRequest
from tests.unit.support.group_coordinator import Harness


@pytest.mark.parametrize("version", range(5))
def test_every_version_returns_errors(group_broker: Harness, version: int) -> None:
    request = HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
    assert group_broker.call(request, version).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    group_broker.lose_group()
    assert group_broker.call(request, version).error_code == ErrorCode.NOT_COORDINATOR
    assert group_broker.call(HeartbeatRequest(), version).error_code == ErrorCode.INVALID_GROUP_ID
