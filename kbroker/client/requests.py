"""What all clients encode and classify in the same way, without I/O: blocking ones, and those of the simulation."""

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from kbroker.common import TopicPartition
from protocol.apis import ApiKey
from protocol.errors import ErrorCode, known_error
from protocol.messages.k10_find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

Address = tuple[str, int]
Partition = tuple[str, int]
# Keys of mappings: a Partition, or a TopicPartition.
PartitionKey = TypeVar("PartitionKey", bound=Partition)

# The key types of FindCoordinator, and its first version with a list of keys (KIP-699).
GROUP, TRANSACTION = 0, 1
FIRST_WITH_KEYS = 4
# The newest versions whose requests name topics; later ones identify topics by topic id only.
MAX_VERSIONS: dict[int, int] = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
    ApiKey.TXN_OFFSET_COMMIT: 5,
}
# APIs that only read: any broker may be asked again after a failure.
REPEATABLE = frozenset(
    {
        ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_CONFIGS, ApiKey.FIND_COORDINATOR, ApiKey.LIST_GROUPS,
        ApiKey.LIST_CONFIG_RESOURCES,
    }
)  # fmt: skip

# A coordinator is loading or moving, or a transaction is being completed.
COORDINATOR_ERRORS = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
# A leader was just elected, or is that of a new topic.
LEADER_ERRORS = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)
# There is no controller now.
CONTROLLER_ERRORS = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT})


class BrokerError(Exception):
    """A broker responded with an error code. `subject`: what the error is about; `message`: the broker's own words."""

    def __init__(self, code: int, subject: str, message: str | None = None) -> None:
        self.code = known_error(code)
        self.subject = subject
        self.message = message
        detail = f"{message.rstrip('.')} ({self.code.name})" if message else self.code.name
        super().__init__(f"{subject}: {detail}")


def check(code: int, subject: str, message: str | None = None) -> None:
    """Raise BrokerError for an error code."""
    if code:
        raise BrokerError(code, subject, message)


class FoundCoordinator(NamedTuple):
    """The coordinator of a group or a transactional id."""

    node_id: int
    address: Address


def find_coordinator_request(key: str, key_type: int, version: int) -> FindCoordinatorRequest:
    """Return the request for the coordinator of a group (GROUP) or a transactional id (TRANSACTION)."""
    if version >= FIRST_WITH_KEYS:
        return FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    return FindCoordinatorRequest(key_type=key_type, key=key)


def found_coordinator(response: FindCoordinatorResponse, subject: str) -> FoundCoordinator:
    """Return the coordinator of a response for one key. Raises BrokerError."""
    found = response.coordinators[0] if response.coordinators else response
    check(found.error_code, subject, found.error_message)
    return FoundCoordinator(found.node_id, (found.host, found.port))


def by_topic(partitions: Iterable[Partition]) -> dict[str, list[int]]:
    """Group partitions, as most requests have them."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in partitions:
        grouped.setdefault(topic, []).append(partition)
    return grouped


def partition_text(partition: Partition) -> str:
    return str(TopicPartition(*partition))
