"""The groups of this broker, of all kinds: DescribeGroups (key 15), versions 0 to 6, and ListGroups (key 16), versions
0 to 5.

- DescribeGroups: the state and the members. A group that does not exist gets GROUP_ID_NOT_FOUND from version 6 on
  (KIP-1043); in earlier versions it is returned with the state Dead. Groups that are not classic do not exist there:
  each kind of group has an API of its own.
- ListGroups: filters by state (version 4, KIP-518) and by type (version 5, KIP-848) ignore case. An empty filter
  matches everything.
- With ACLs DescribeGroups needs DESCRIBE on each group. ListGroups has the groups with DESCRIBE, or all if the client
  has it on the cluster.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from operator import methodcaller
from typing import Any, TypeVar

from kbroker.api.authorization import require
from kbroker.api.context import RequestContext, Services
from kbroker.authorization.acl import OPERATIONS_NOT_REQUESTED, Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k15_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from protocol.schema.message import Struct

# A broker may have thousands of groups, and a group thousands of members with subscriptions and assignments.
RUNS_IN_TURNS = True

NOT_FOUND_VERSION = 6
DEAD = "Dead"
MAX_NAME = 32
HIDDEN_TOPIC = "The group has described topic(s) that the client is not authorized to describe."

D = TypeVar("D", bound=Struct)


def assigned_topics(group: Any) -> Iterator[str]:
    """Return the topics of all members of a consumer or share group."""
    for member in group.members:
        for assignment in (member.assignment, getattr(member, "target_assignment", None)):
            if assignment is not None:
                yield from (each.topic_name for each in assignment.topic_partitions)


async def describe_groups_of_kind(
    services: Services,
    context: RequestContext,
    request: Any,
    kind: type[Any],
    described_class: Callable[..., D],
    topics_of: Callable[[D], Iterable[str]],
) -> list[D]:
    """Return the description of each group of ConsumerGroupDescribe or ShareGroupDescribe, or its error.

    `kind`: the subclass of GroupKind, which has a `describe`. `topics_of` returns the topics that a client
    must be allowed to describe, too.
    """
    # A large group that is named 10,000 times is described once.
    groups: dict[str, D] = {}
    for group_id in paced(request.group_ids):
        if group_id in groups:
            continue
        try:
            services.groups.check_enabled(kind)
            require(services, context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID)
            group: Any = await services.groups.write(group_id, kind, methodcaller("describe", group_id))
            for topic in set(paced(topics_of(group)) if context.access(services) else ()):
                require(services, context, Operation.DESCRIBE, ResourceType.TOPIC, topic, HIDDEN_TOPIC)
            if request.include_authorized_operations:
                group.authorized_operations = context.authorized_operations(services, ResourceType.GROUP, group_id)
        except KafkaError as error:
            group = described_class(group_id=group_id, error_code=error.code, error_message=error.message)
        groups[group_id] = group
    return [groups[group_id] for group_id in request.group_ids]


def describe_groups(
    services: Services, context: RequestContext, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    # Equal names have the same result: a large group that is named 10,000 times would otherwise take gigabytes.
    @cache
    def describe(group_id: str) -> DescribedGroup:
        try:
            require(services, context, Operation.DESCRIBE, ResourceType.GROUP, group_id)
            group = _describe(services, context.version, group_id)
        except KafkaError as error:
            return DescribedGroup(group_id=group_id, error_code=error.code)
        if request.include_authorized_operations:
            exists = group.error_code == ErrorCode.NONE
            operations = context.authorized_operations(services, ResourceType.GROUP, group_id)
            group.authorized_operations = operations if exists else OPERATIONS_NOT_REQUESTED
        return group

    return DescribeGroupsResponse(groups=[describe(group_id) for group_id in paced(request.groups)])


def _describe(services: Services, version: int, group_id: str) -> DescribedGroup:
    """Return the description. Raises KafkaError if the group's coordinator is not here."""
    group = services.groups.group(group_id)
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


async def list_groups(services: Services, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    # Names that are longer than that of any state or type are not converted as a whole.
    states = {name[:MAX_NAME].lower() for name in paced(request.states_filter)}
    types = {name[:MAX_NAME].lower() for name in paced(request.types_filter)}
    if types and types.isdisjoint(services.groups.type_names):
        return ListGroupsResponse()
    groups = [
        group
        for group in paced(await services.groups.list_groups())
        if (not states or group.group_state.lower() in states) and (not types or group.group_type in types)
    ]
    return ListGroupsResponse(groups=groups)


HANDLERS = {ApiKey.DESCRIBE_GROUPS: describe_groups, ApiKey.LIST_GROUPS: list_groups}
