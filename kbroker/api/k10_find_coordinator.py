"""FindCoordinator (key 10), versions 0 to 6: the broker that coordinates a group or a transactional id.

- The first request creates __consumer_offsets or __transaction_state. Kafka returns COORDINATOR_NOT_AVAILABLE in the
meantime, and the client retries; in kbroker the response waits.
- Several keys at once from version 4 on (KIP-699).
- Keys of share groups and unknown key types get INVALID_REQUEST.
"""

from typing import Any

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.coordinator.internal_log import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
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
    # In these versions Kafka's message for no error is the name of the code.
    coordinator = await _find(services, request.key_type, request.key, ErrorCode.NONE.name)
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        error_message=coordinator.error_message,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )


async def _find(services: Services, key_type: int, key: str, no_error_message: str) -> Coordinator:
    if key_type not in (GROUP, TRANSACTION):
        return _error(key, ErrorCode.INVALID_REQUEST, f"This broker has no coordinators of key type {key_type}.")
    try:
        leader = await _leader(services, key_type, key)
    except KafkaError as error:
        return _error(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message or "The coordinator is not available.")
    node = services.metadata.brokers.get(leader)
    if node is None:
        return _error(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "The coordinator is not available.")
    return Coordinator(key=key, node_id=node.id, host=node.host, port=node.port, error_message=no_error_message)


async def _leader(services: Services, key_type: int, key: str) -> int:
    topic = GROUP_METADATA_TOPIC if key_type == GROUP else TRANSACTION_STATE_TOPIC
    runtime: CoordinatorRuntime[Any] = (services.groups if key_type == GROUP else services.transactions).runtime
    if topic not in services.metadata.topics:
        await services.controller.ensure_internal_topic(topic)
        # Wait, so that the client's next request does not find the partition still loading.
        await runtime.wait_until_loaded(key)
    image = services.metadata.partition(topic, runtime.partition_for(key))
    return NO_NODE if image is None else image.leader


def _error(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=NO_NODE, host="", port=NO_NODE, error_code=error, error_message=message)
