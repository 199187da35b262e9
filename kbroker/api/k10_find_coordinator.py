"""FindCoordinator (key 10), versions 0 to 6: the broker that coordinates a group, transactional id or share partition.

- The first request creates __consumer_offsets or __transaction_state. Kafka returns COORDINATOR_NOT_AVAILABLE in the
  meantime, and the client retries; in kbroker the response waits. It also waits, for 2 s at most, for a partition that
  this broker is loading.
- Several keys at once from version 4 on (KIP-699).
- A coordinator that does not have the listener of the request is not available.
- Share partitions (KIP-932) from version 6 on, at any level of share.version. A key is GROUP:TOPIC-ID:PARTITION.
- Other keys of share partitions and unknown key types get INVALID_REQUEST.
- With ACLs a group and a transactional id need DESCRIBE, share partitions CLUSTER_ACTION on the cluster.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from kbroker.api.authorization import require
from kbroker.api.context import RequestContext, Services
from kbroker.authorization.acl import CLUSTER_NAME, Operation, ResourceType
from kbroker.common import KafkaError
from kbroker.coordinator.runtime.coordinator_runtime import CoordinatorRuntime
from kbroker.coordinator.share.share_partition_state import is_coordinator_key
from kbroker.metadata.topics.topic_names import GROUP_METADATA_TOPIC, SHARE_GROUP_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k10_find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

GROUP, TRANSACTION, SHARE = 0, 1, 2
TOPICS = {GROUP: GROUP_METADATA_TOPIC, TRANSACTION: TRANSACTION_STATE_TOPIC, SHARE: SHARE_GROUP_STATE_TOPIC}
SEVERAL_KEYS_VERSION = 4
SHARE_PARTITIONS_VERSION = 6
NO_NODE = -1
MALFORMED = (
    "This most likely occurs because of a request being malformed by the client library or the message was sent to an "
    "incompatible broker. See the broker logs for more details."
)
RIGHTS = {
    GROUP: (Operation.DESCRIBE, ResourceType.GROUP),
    TRANSACTION: (Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID),
    SHARE: (Operation.CLUSTER_ACTION, ResourceType.CLUSTER),
}
NOT_BROKER = "Share partitions need CLUSTER_ACTION permission."
NOT_AVAILABLE = "The coordinator is not available."


def handle(
    services: Services, context: RequestContext, request: FindCoordinatorRequest
) -> FindCoordinatorResponse | Awaitable[FindCoordinatorResponse]:
    key_type = request.key_type
    keys = request.coordinator_keys if context.version >= SEVERAL_KEYS_VERSION else [request.key]
    if key_type not in TOPICS:
        message = f"This broker has no coordinators of key type {key_type}."
        find = partial(_error, ErrorCode.INVALID_REQUEST, message)
        return _response(context, find, keys)
    if key_type == SHARE and context.version < SHARE_PARTITIONS_VERSION:
        message = "" if context.version >= SEVERAL_KEYS_VERSION else MALFORMED
        return _response(context, partial(_error, ErrorCode.INVALID_REQUEST, message), keys)
    is_missing = TOPICS[key_type] not in services.metadata.topics
    if (is_missing or _runtime(services, key_type).is_loading(paced(keys))) and any(
        _is_valid(key_type, key) and _refusal(services, context, key_type, key) is None for key in paced(keys)
    ):
        return _prepare(services, context, key_type, keys)
    return _response(context, partial(_find, services, context, key_type), keys)


def is_cacheable(services: Services, request: FindCoordinatorRequest) -> bool:
    return True


async def _prepare(
    services: Services, context: RequestContext, key_type: int, keys: list[str]
) -> FindCoordinatorResponse:
    """Respond when the topic exists, and this broker has loaded its partitions of the keys.

    Otherwise the client's next request could get COORDINATOR_LOAD_IN_PROGRESS, and librdkafka waits for 3 s then.
    """
    try:
        await services.auto_topic_creation.ensure_internal_topic(TOPICS[key_type])
    except KafkaError as error:
        find = partial(_error, ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message or NOT_AVAILABLE)
        return _response(context, find, keys)
    await _runtime(services, key_type).wait_until_loaded(*keys)
    return _response(context, partial(_find, services, context, key_type), keys)


def _is_valid(key_type: int, key: str) -> bool:
    return key_type != SHARE or is_coordinator_key(key)


def _refusal(services: Services, context: RequestContext, key_type: int, key: str) -> KafkaError | None:
    operation, resource_type = RIGHTS[key_type]
    name = CLUSTER_NAME if key_type == SHARE else key
    try:
        require(services, context, operation, resource_type, name, NOT_BROKER if key_type == SHARE else None)
    except KafkaError as error:
        return error
    return None


def _find(services: Services, context: RequestContext, key_type: int, key: str) -> Coordinator:
    refused = _refusal(services, context, key_type, key)
    if refused is not None:
        return _error(refused.code, refused.message or "", key)
    if not _is_valid(key_type, key):
        return _error(ErrorCode.INVALID_REQUEST, "", key)
    partition = services.metadata.partition(TOPICS[key_type], _runtime(services, key_type).partition_for(key))
    endpoints = services.metadata.endpoints(context.listener)
    if partition is None or partition.leader not in endpoints:
        return _error(ErrorCode.COORDINATOR_NOT_AVAILABLE, NOT_AVAILABLE, key)
    endpoint = endpoints[partition.leader]
    return Coordinator(key=key, node_id=partition.leader, host=endpoint.host, port=endpoint.port, error_message="")


def _runtime(services: Services, key_type: int) -> CoordinatorRuntime[Any]:
    if key_type == SHARE:
        return services.share_states.runtime
    return services.groups.runtime if key_type == GROUP else services.transactions.runtime


def _error(error: ErrorCode, message: str, key: str) -> Coordinator:
    return Coordinator(key=key, node_id=NO_NODE, host="", port=NO_NODE, error_code=error, error_message=message)


def _response(context: RequestContext, find: Callable[[str], Coordinator], keys: list[str]) -> FindCoordinatorResponse:
    coordinators = [find(key) for key in paced(keys)]
    if context.version >= SEVERAL_KEYS_VERSION:
        return FindCoordinatorResponse(coordinators=coordinators)
    (coordinator,) = coordinators
    return FindCoordinatorResponse(
        error_code=coordinator.error_code,
        # In these versions Kafka's message for no error is the name of the code.
        error_message=coordinator.error_message or ErrorCode.NONE.name,
        node_id=coordinator.node_id,
        host=coordinator.host,
        port=coordinator.port,
    )
