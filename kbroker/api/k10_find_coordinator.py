"""FindCoordinator (key 10), versions 0 to 6: which broker keeps a group, or a transactional id.

- The first request makes __consumer_offsets, or __transaction_state. Kafka answers COORDINATOR_NOT_AVAILABLE meanwhile
  and the client comes again; here the answer waits.
- Several keys at once from version 4 on (KIP-699).
- Share groups' keys and unknown key types are INVALID_REQUEST.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.internal_log import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from protocol.errors import ErrorCode
from protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION = 0, 1
SEVERAL_KEYS_VERSION = 4
NO_NODE = -1


async def handle(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    if context.version >= SEVERAL_KEYS_VERSION:
        return FindCoordinatorResponse(
            coordinators=[await _find(services, request.key_type, key, "") for key in request.coordinator_keys]
        )
    # Kafka's text for no error in these versions is the name of the code.
    found = await _find(services, request.key_type, request.key, ErrorCode.NONE.name)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


async def _find(services: Services, key_type: int, key: str, no_error: str) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        return _none(key, ErrorCode.INVALID_REQUEST, f"This broker has no coordinators of key type {key_type}.")
    try:
        leader = await _leader(services, key_type, key)
    except KafkaError as refusal:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, refusal.message or "The coordinator is not available.")
    node = services.metadata.brokers.get(leader)
    if node is None:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
    return Coordinator(key=key, node_id=node.id, host=node.host, port=node.port, error_message=no_error)


async def _leader(services: Services, key_type: int, key: str) -> int:
    topic, coordinator = (
        (GROUP_METADATA_TOPIC, services.groups)
        if key_type == GROUP
        else (TRANSACTION_STATE_TOPIC, services.transactions)
    )
    if topic not in services.metadata.topics:
        await services.controller.ensure_internal_topic(topic)
        # So that the client's next request does not find its partition still being loaded.
        await coordinator.loaded(key)
    image = services.metadata.partition(topic, coordinator.partition_for(key))
    return NO_NODE if image is None else image.leader


def _none(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=NO_NODE, host="", port=NO_NODE, error_code=error, error_message=message)
