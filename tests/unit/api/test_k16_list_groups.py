from typing import Any

import pytest

from kbroker.coordinator.group.records import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.k16_list_groups import ListGroupsRequest
from tests.unit.support.group_coordinator import NODE, Harness


@pytest.mark.parametrize("version", range(6))
def test_every_version_lists(group_broker: Harness, version: int) -> None:
    for name in ("a", "b", "c"):
        group_broker.commit_offset("t", 0, OffsetAndMetadata(1), name)
    answer = group_broker.call(ListGroupsRequest(), version)
    assert answer.error_code == 0
    assert sorted(group.group_id for group in answer.groups) == ["a", "b", "c"]
    assert {group.group_state for group in answer.groups} == {"Empty" if version >= 4 else ""}
    assert {group.group_type for group in answer.groups} == {"classic" if version >= 5 else ""}


def test_a_list_that_would_not_be_whole_is_refused(group_broker: Harness) -> None:
    group_broker.run(group_broker.elect(0, NODE + 1))
    assert group_broker.call(ListGroupsRequest(), 5).error_code == 0

    async def elected_and_asked() -> Any:
        await group_broker.elect(0, NODE)
        return await group_broker.serve(ListGroupsRequest(), 5)

    assert group_broker.run(elected_and_asked()).error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
