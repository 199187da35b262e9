"""DeleteGroups in every version, and a deletion that cannot be written."""

import pytest

from kbroker.coordinator.group.records import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.messages.k42_delete_groups import DeleteGroupsRequest
from tests.unit.support.group_coordinator import Harness


@pytest.mark.parametrize("version", range(3))
def test_every_version_deletes(group_broker: Harness, version: int) -> None:
    group_broker.commit_offset("t", 0, OffsetAndMetadata(1))
    response = group_broker.call(DeleteGroupsRequest(groups_names=["g", "none", "g"]), version)
    results = {result.group_id: result.error_code for result in response.results}
    assert results == {"g": 0, "none": ErrorCode.GROUP_ID_NOT_FOUND}
    assert len(response.results) == 2
    assert group_broker.committed_offsets() == {}


@pytest.mark.parametrize("version", range(3))
def test_a_group_of_another_broker(group_broker: Harness, version: int) -> None:
    group_broker.lose_group()
    (result,) = group_broker.call(DeleteGroupsRequest(groups_names=["g"]), version).results
    assert result.error_code == ErrorCode.NOT_COORDINATOR


def test_a_deletion_that_cannot_be_written_deletes_nothing(group_broker: Harness) -> None:
    group_broker.commit_offset("t", 0, OffsetAndMetadata(1))
    group_broker.log.append_error = ErrorCode.NOT_ENOUGH_REPLICAS
    (result,) = group_broker.call(DeleteGroupsRequest(groups_names=["g"]), 2).results
    assert result.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert group_broker.groups.group("g") is not None
