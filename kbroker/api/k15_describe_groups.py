"""DescribeGroups (key 15), versions 0 to 6: the state and the members of groups.

- A group that does not exist gets GROUP_ID_NOT_FOUND from version 6 on (KIP-1043); in earlier versions it is returned
  with the state Dead.
- Groups that are not classic do not exist here: each kind of group has an API of its own.
"""

from functools import cache

from kbroker.api.authorized_operations import NOT_REQUESTED
from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k15_describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)

# A group may have thousands of members, each with its subscription and assignment.
RUNS_IN_TURNS = True

NOT_FOUND_VERSION = 6
DEAD = "Dead"
# Read, Delete, Describe, DescribeConfigs, AlterConfigs; the bits are explained in authorized_operations.py.
GROUP_OPERATIONS = 3400


def handle(services: Services, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    # Equal names have the same result: a large group that is named 10,000 times would otherwise take gigabytes.
    @cache
    def describe(group_id: str) -> DescribedGroup:
        group = _describe(services, context.version, group_id)
        if request.include_authorized_operations:
            group.authorized_operations = GROUP_OPERATIONS if group.error_code == ErrorCode.NONE else NOT_REQUESTED
        return group

    return DescribeGroupsResponse(groups=[describe(group_id) for group_id in paced(request.groups)])


def _describe(services: Services, version: int, group_id: str) -> DescribedGroup:
    try:
        group = services.groups.group(group_id)
    except KafkaError as error:
        return DescribedGroup(group_id=group_id, error_code=error.code)
    try:
        if group is not None:
            return group.describe()
        message: str | None = f"Group {group_id} not found."
    except KafkaError as error:
        message = error.message
    dead = DescribedGroup(group_id=group_id, group_state=DEAD)
    if version >= NOT_FOUND_VERSION:
        dead.error_code = ErrorCode.GROUP_ID_NOT_FOUND
        dead.error_message = message
    return dead
