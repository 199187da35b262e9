"""DescribeClientQuotas (key 48), versions 0 and 1: the quotas of the entities that a filter matches (KIP-546).

- An entity matches if it has every type of the filter, with `strict` no others. No component matches all entities, with
  `strict` none.
- A filter is validated as in Apache Kafka, component by component.
- The response to an invalid filter has null entries. The response to a valid one has an empty list of entries, and
  the error message "".
"""

from collections.abc import Mapping, Sequence

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.quotas.entities import CLIENT_ID, IP, USER, QuotaEntity
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k48_describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

# A small request may have a large response.
RUNS_IN_TURNS = True

# The match types of a filter: one name, the default entity, or any entity that has a quota.
EXACT, DEFAULT, SPECIFIED = 0, 1, 2


def handle(
    services: Services, context: RequestContext, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    try:
        validate_filter(request.components)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)
    quotas = services.metadata.client_quotas
    found = [entity for entity in paced(list(quotas)) if _matches(entity, request.components, request.strict)]
    return DescribeClientQuotasResponse(entries=[_entry(each, quotas[each]) for each in paced(found) if each in quotas])


def _matches(entity: QuotaEntity, components: Sequence[ComponentData], strict: bool) -> bool:
    parts = entity.parts()
    if strict and len(parts) != len(components):
        return False
    return all(
        each.entity_type in parts and (each.match_type == SPECIFIED or (parts[each.entity_type] or None) == each.match)
        for each in components
    )


def _entry(entity: QuotaEntity, quotas: Mapping[str, float]) -> EntryData:
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name or None) for kind, name in entity.parts().items()],
        values=[ValueData(key=name, value=value) for name, value in quotas.items()],
    )


def failed_response(
    context: RequestContext, request: DescribeClientQuotasRequest, error: KafkaError
) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message, entries=None)


def validate_filter(components: Sequence[ComponentData]) -> None:
    """Raise KafkaError for the first invalid component, or for a combination that no quota can have."""
    types: set[str] = set()
    for component in components:
        _validate_component(component, types)
        types.add(component.entity_type)
    if IP in types and len(types) > 1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component.",
        )


def _validate_component(component: ComponentData, types: set[str]) -> None:
    if not component.entity_type:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
    if component.entity_type in types:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Entity type {component.entity_type} cannot appear more than once in the filter.",
        )
    if component.entity_type not in (USER, CLIENT_ID, IP):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {component.entity_type}")
    message = _match_error(component.match_type, component.match)
    if message is not None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, message)


def _match_error(match_type: int, match: str | None) -> str | None:
    """Return why a component's match type and match string are invalid, None if they are valid."""
    if match_type == EXACT:
        return "Request specified MATCH_TYPE_EXACT, but set match string to null." if match is None else None
    if match_type not in (DEFAULT, SPECIFIED):
        return f"Unknown match type {match_type}"
    name = "DEFAULT" if match_type == DEFAULT else "SPECIFIED"
    return None if match is None else f"Request specified MATCH_TYPE_{name}, but also specified a match string."
