"""DescribeGroups and ListGroups in every version."""

from typing import Any

import pytest

from kbroker.coordinator.group.records import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.k15_groups import DescribeGroupsRequest, ListGroupsRequest
from tests.unit.support.group_coordinator import NODE, Harness


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


@pytest.mark.parametrize("version", range(6))
def test_every_version_lists(group_broker: Harness, version: int) -> None:
    for name in ("a", "b", "c"):
        group_broker.commit_offset("t", 0, OffsetAndMetadata(1), name)
    response = group_broker.call(ListGroupsRequest(), version)
    assert response.error_code == 0
    assert sorted(group.group_id for group in response.groups) == ["a", "b", "c"]
    assert {group.group_state for group in response.groups} == {"Empty" if version >= 4 else ""}
    assert {group.group_type for group in response.groups} == {"classic" if version >= 5 else ""}


def test_an_incomplete_list_is_an_error(group_broker: Harness) -> None:
    group_broker.run(group_broker.elect(0, NODE + 1))
    assert group_broker.call(ListGroupsRequest(), 5).error_code == 0

    async def elect_and_list() -> Any:
        await group_broker.elect(0, NODE)
        return await group_broker.serve(ListGroupsRequest(), 5)

    assert group_broker.run(elect_and_list()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
