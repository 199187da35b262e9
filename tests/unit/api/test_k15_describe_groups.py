"""DescribeGroups in every version."""

import pytest

from kbroker.coordinator.group.records import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.k15_describe_groups import DescribeGroupsRequest
from tests.unit.support.group_coordinator import Harness


@pytest.mark.parametrize("version", range(7))
def test_every_version_describes(group_broker: Harness, version: int) -> None:
    group_broker.commit_offset("t", 0, OffsetAndMetadata(1))
    request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=version >= 3)
    known, unknown = group_broker.call(request, version).groups
    assert (known.error_code, known.group_state, known.members) == (0, "Empty", [])
    assert unknown.group_state == "Dead"
    if version < 6:
        assert unknown.error_code == 0
    else:
        assert (unknown.error_code, unknown.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group none not found.")
    if version >= 3:
        # Bits 3, 6, 8, 10 and 11, as Apache Kafka without an authorizer.
        assert known.authorized_operations == 3400
        assert unknown.authorized_operations == (3400 if version < 6 else -(2**31))


@pytest.mark.parametrize("version", range(7))
def test_a_group_of_another_broker(group_broker: Harness, version: int) -> None:
    group_broker.lose_group()
    (group,) = group_broker.call(DescribeGroupsRequest(groups=["g"]), version).groups
    assert (group.group_id, group.error_code, group.group_state) == ("g", ErrorCode.NOT_COORDINATOR, "")
