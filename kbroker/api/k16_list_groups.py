"""ListGroups (key 16), versions 0 to 5: the groups of this broker.

Filters by state (version 4, KIP-518) and by type (version 5, KIP-848) ignore case. An empty filter matches everything.
"""

from collections.abc import Awaitable, Collection, Iterable

from kbroker.api.context import RequestContext, Services
from kbroker.api.large_responses import MAX_LISTED_AT_ONCE
from kbroker.common import KafkaError
from kbroker.coordinator.group.group import Group
from kbroker.runtime.slices import Steps, at_once_or_in_slices
from protocol.messages.k16_list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

MAX_NAME = 32


def handle(
    services: Services, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse | Awaitable[ListGroupsResponse]:
    # Names that are longer than that of any state or type are not converted as a whole.
    states = {name[:MAX_NAME].lower() for name in request.states_filter}
    types = {name[:MAX_NAME].lower() for name in request.types_filter}
    if types and types.isdisjoint(services.groups.type_names):
        return ListGroupsResponse()
    try:
        groups = services.groups.list_groups()
    except KafkaError as error:
        return ListGroupsResponse(error_code=error.code)
    return at_once_or_in_slices(context.slices, _listed(groups, states, types))


def is_large(services: Services, context: RequestContext, request: ListGroupsRequest) -> bool:
    return services.groups.group_count() > MAX_LISTED_AT_ONCE


def _listed(groups: Iterable[Group], states: Collection[str], types: Collection[str]) -> Steps[ListGroupsResponse]:
    response = ListGroupsResponse()
    for group in groups:
        if (not states or group.state_name.lower() in states) and (not types or group.type_name in types):
            response.groups.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type_name,
                    group_state=group.state_name,
                    group_type=group.type_name,
                )
            )
        yield
    return response
