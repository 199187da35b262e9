"""AlterClientQuotas (key 49), versions 0 and 1: set and remove quotas of users, client ids and addresses (KIP-546).

- Entities are altered independently, each as a whole: if one of its quotas is invalid, none is stored.
- An entity that the request has twice is altered by its first entry, and has an error in the response, as in Kafka.
- If an entry has a type twice, the last name counts, as in Kafka.
- To remove a quota that is not set, or that does not exist, is no error.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.quotas.entities import IP, QuotaEntity, check_entity, ignored_duplicate
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k48_describe_client_quotas import EntityData
from protocol.messages.k49_alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryData,
    EntryResult,
)

FORWARDED = True

Parts = tuple[tuple[str, str | None], ...]


async def handle(
    services: Services, context: RequestContext, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    results: dict[Parts, KafkaError | None] = {}
    entities: dict[QuotaEntity, Parts] = {}
    alterations: dict[QuotaEntity, list[tuple[str, float | None]]] = {}
    for entry in paced(request.entries):
        parts = _parts(entry)
        try:
            entity = check_entity(dict(parts))
        except KafkaError as error:
            results[parts] = error
            continue
        results[parts] = None
        if entity in entities:
            results[parts] = ignored_duplicate(entity)
            continue
        entities[entity] = parts
        alterations[entity] = [(op.key, None if op.remove else op.value) for op in entry.ops]
    errors = await services.controller.quotas.alter(alterations, request.validate_only)
    for entity, refusal in errors.items():
        results[entities[entity]] = results[entities[entity]] or refusal
    return AlterClientQuotasResponse(entries=[_result(parts, error) for parts, error in results.items()])


def failed_response(
    context: RequestContext, request: AlterClientQuotasRequest, error: KafkaError
) -> AlterClientQuotasResponse:
    entities = dict.fromkeys(_parts(entry) for entry in request.entries)
    return AlterClientQuotasResponse(entries=[_result(parts, error) for parts in entities])


def _parts(entry: EntryData) -> Parts:
    """Return the types and names, in the order in which Kafka's hash map has them, so that duplicates are equal."""
    names = {row.entity_type: row.entity_name for row in entry.entity}
    return tuple((kind, names[kind]) for kind in sorted(names, key=lambda kind: (kind == IP, kind)))


def _result(parts: Parts, error: KafkaError | None) -> EntryResult:
    return EntryResult(
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in parts],
    )
