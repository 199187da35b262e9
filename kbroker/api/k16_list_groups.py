"""ListGroups (key 16), versions 0 to 5: the groups of this broker.

Filters by state (version 4, KIP-518) and by type (version 5, KIP-848) ignore case. An empty filter matches everything.
"""

from collections.abc import Awaitable, Collection, Iterable

from kbroker.api.context import RequestContext, Services
from kbroker.api.large_responses import MAX_LISTED_AT_ONCE
from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_group import ClassicGroup
from kbroker.runtime.slices import Steps, at_once_or_in_slices
from protocol.messages.k16_list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLASSIC = "classic"

MAX_NAME = 32


def handle(
    services: Services, context: RequestContext, request: ListGroupsRequest
) -> ListGroupsResponse | Awaitable[ListGroupsResponse]:
    # Names that are longer than that of any state or type are not converted as a whole.
    states = {name[:MAX_NAME].lower() for name in request.states_filter}
    types = {name[:MAX_NAME].lower() for name in request.types_filter}
    if types and CLASSIC not in types:
        return ListGroupsResponse()
    try:
        groups = services.groups.list_groups()
    except KafkaError as error:
        return ListGroupsResponse(error_code=error.code)
    return at_once_or_in_slices(context.slices, _listed(groups, states))


def is_large(services: Services, context: RequestContext, request: ListGroupsRequest) -> bool:
    return services.groups.group_count() > MAX_LISTED_AT_ONCE


def _listed(groups: Iterable[ClassicGroup], states: Collection[str]) -> Steps[ListGroupsResponse]:
    response = ListGroupsResponse()
    for group in groups:
        if not states or group.state.value.lower() in states:
            response.groups.append(
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=CLASSIC,
                )
            )
        yield
    return response
