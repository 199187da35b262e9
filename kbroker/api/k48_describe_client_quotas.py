"""DescribeClientQuotas (key 48), versions 0 and 1: no quotas, since kbroker has none.

A filter is checked as Apache Kafka checks it, component by component. The response to an invalid filter has null
instead of a list of entries; the response to a valid filter has an empty list, and "" as its error message.
"""

from collections.abc import Sequence

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from protocol.errors import ErrorCode
from protocol.messages.k48_describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)

USER, CLIENT_ID, IP = "user", "client-id", "ip"
# Match types: a given name, the default entity, any entity for which a quota is specified.
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


def handle(
    services: Services, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    try:
        check_filter(request.components)
    except KafkaError as refusal:
        return DescribeClientQuotasResponse(error_code=refusal.code, error_message=refusal.message, entries=None)
    return DescribeClientQuotasResponse()


def check_filter(components: Sequence[ComponentData]) -> None:
    """Raise KafkaError for the first invalid component, or for a combination that no quota can have."""
    types: set[str] = set()
    for component in components:
        _check_component(component, types)
        types.add(component.entity_type)
    if IP in types and len(types) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component.",
        )


def _check_component(component: ComponentData, types: set[str]) -> None:
    if not component.entity_type:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
    if component.entity_type in types:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Entity type {component.entity_type} cannot appear more than once in the filter.",
        )
    if component.entity_type not in (USER, CLIENT_ID, IP):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {component.entity_type}")
    fault = _match_fault(component.match_type, component.match)
    if fault is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, fault)


def _match_fault(match_type: int, match: str | None) -> str | None:
    """What is wrong with a component's match type and match string, or None."""
    if match_type == EXACT:
        return "Request specified MATCH_TYPE_EXACT, but set match string to null." if match is None else None
    if match_type not in (DEFAULT, SPECIFIED):
        return f"Unknown match type {match_type}"
    name = "DEFAULT" if match_type == DEFAULT else "SPECIFIED"
    return None if match is None else f"Request specified MATCH_TYPE_{name}, but also specified a match string."
