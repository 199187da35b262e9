import pytest

from kbroker.coordinator.group.records import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.k15_describe_groups import DescribeGroupsRequest
from tests.unit.support.group_coordinator import Harness


@pytest.mark.parametrize("version", range(7))
def test_every_version_describes(group_broker: Harness, version: int) -> None:
    group_broker.commit_offset("t", 0, OffsetAndMetadata(1))
    request = DescribeGroupsRequest(groups=["g", "none"], include_authorized_operations=version >= 3)
    there, none = group_broker.call(request, version).groups
    assert (there.error_code, there.group_state, there.members) == (0, "Empty", [])
    assert none.group_state == "Dead"
    if version < 6:
        assert none.error_code == 0
    else:
        assert (none.error_code, none.error_message) == (ErrorCode.GROUP_ID_NOT_FOUND, "Group none not found.")
    if version >= 3:
        # Bits 3, 6, 8, 10 and 11: what Apache Kafka answers without an authorizer.
        assert there.authorized_operations == 3400
        assert none.authorized_operations == (3400 if version < 6 else -(2**31))


@pytest.mark.parametrize("version", range(7))
def test_another_brokers_group(group_broker: Harness, version: int) -> None:
    group_broker.lose_group()
    (group,) = group_broker.call(DescribeGroupsRequest(groups=["g"]), version).groups
    assert (group.group_id, group.error_code, group.group_state) == ("g", ErrorCode.NOT_COORDINATOR, "")
