"""ListGroups (key 16), versions 0 to 5: the groups of this broker.

Filters by state (version 4, KIP-518) and by type (version 5, KIP-848) ignore case. An empty filter matches everything.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.messages.k16_list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

# A broker may have thousands of groups.
RUNS_IN_TURNS = True

MAX_NAME = 32


def handle(services: Services, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
    # Names that are longer than that of any state or type are not converted as a whole.
    states = {name[:MAX_NAME].lower() for name in paced(request.states_filter)}
    types = {name[:MAX_NAME].lower() for name in paced(request.types_filter)}
    if types and types.isdisjoint(services.groups.type_names):
        return ListGroupsResponse()
    try:
        groups = services.groups.list_groups()
    except KafkaError as error:
        return ListGroupsResponse(error_code=error.code)
    return ListGroupsResponse(
        groups=[
            ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type_name,
                group_state=group.state_name,
                group_type=group.type_name,
            )
            for group in paced(groups)
            if (not states or group.state_name.lower() in states) and (not types or group.type_name in types)
        ]
    )
