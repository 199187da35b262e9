"""ACLs and filters of ACLs, with Kafka's names and numbers."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple, TypeVar

from kbroker.common import KafkaError
from protocol.errors import ErrorCode

# The name of a literal pattern that covers all resources of its type; also the host of an ACL for all hosts.
WILDCARD = "*"
ANY_USER = "User:*"
CLUSTER_NAME = "kafka-cluster"


class ResourceType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """MATCH is for filters: the patterns of all types that cover a name."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PermissionType(IntEnum):
    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


E = TypeVar("E", ResourceType, PatternType, Operation, PermissionType)


def numbered(cls: type[E], number: int) -> E:
    """Return the member with a number; UNKNOWN if none has it."""
    try:
        return cls(number)
    except ValueError:
        return cls.UNKNOWN


_O = Operation
# The operations that apply to a type of resource, whose bits responses have as "authorized operations".
SUPPORTED_OPERATIONS = {
    ResourceType.TOPIC: (_O.READ, _O.WRITE, _O.CREATE, _O.DELETE, _O.ALTER, _O.DESCRIBE, _O.DESCRIBE_CONFIGS,
                         _O.ALTER_CONFIGS),
    ResourceType.GROUP: (_O.READ, _O.DELETE, _O.DESCRIBE, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS),
    ResourceType.CLUSTER: (_O.CREATE, _O.ALTER, _O.DESCRIBE, _O.CLUSTER_ACTION, _O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS,
                           _O.IDEMPOTENT_WRITE),
    ResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE, _O.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (_O.DESCRIBE,),
    ResourceType.USER: (_O.CREATE_TOKENS, _O.DESCRIBE_TOKENS),
}  # fmt: skip
# An ALLOW of one of these operations allows the other, too. A DENY denies its own operation only.
_IMPLIES_DESCRIBE = frozenset({_O.DESCRIBE, _O.READ, _O.WRITE, _O.DELETE, _O.ALTER})
_IMPLIES_DESCRIBE_CONFIGS = frozenset({_O.DESCRIBE_CONFIGS, _O.ALTER_CONFIGS})


def operation_bits(operations: Iterable[Operation]) -> int:
    """Return the operations as a bit set of their numbers."""
    return sum(1 << operation for operation in operations)


ALL_OPERATIONS = {each: operation_bits(operations) for each, operations in SUPPORTED_OPERATIONS.items()}
# The value of a field for such a bit set that was not asked for.
OPERATIONS_NOT_REQUESTED = -(2**31)


@lru_cache(1024)
def canonical_host(host: str) -> str:
    """Return one form of an address: Java writes IPv6 addresses in full, and a listener for both versions maps IPv4."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(address)


class Acl(NamedTuple):
    """One rule (Kafka: AclBinding). `principal`: TYPE:NAME. `host`: an address, or WILDCARD."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: PermissionType

    def __str__(self) -> str:
        pattern = "" if self.pattern_type is PatternType.LITERAL else f"{self.pattern_type.name} "
        return (
            f"{self.permission.name} {self.operation.name} on {pattern}{self.resource_type.name} {self.name} to "
            f"{self.principal} from {self.host}"
        )

    @property
    def is_for_filters(self) -> bool:
        """Whether it has an element that only filters may have. Kafka has no such object, and fails differently."""
        return (
            ResourceType.ANY in (self.resource_type, self.operation, self.permission)
            or self.pattern_type in (PatternType.ANY, PatternType.MATCH)
        )  # fmt: skip

    def applies_to(self, operation: Operation, host: str) -> bool:
        """Return whether this ACL of the principal and the resource decides about an operation from a host."""
        if self.host != WILDCARD and canonical_host(self.host) != host:
            return False
        own = self.operation
        if own is operation or own is Operation.ALL:
            return True
        if self.permission is not PermissionType.ALLOW:
            return False
        if operation is Operation.DESCRIBE:
            return own in _IMPLIES_DESCRIBE
        return operation is Operation.DESCRIBE_CONFIGS and own in _IMPLIES_DESCRIBE_CONFIGS


class AclFilter(NamedTuple):
    """Which ACLs DescribeAcls and DeleteAcls mean. ANY and None match all."""

    resource_type: ResourceType = ResourceType.ANY
    pattern_type: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: PermissionType = PermissionType.ANY

    @property
    def error(self) -> KafkaError | None:
        """Why ACLs cannot be deleted by this filter; it matches none."""
        if self.resource_type is ResourceType.UNKNOWN or self.pattern_type is PatternType.UNKNOWN:
            return _invalid("Unknown patternFilter.")
        if self.operation is Operation.UNKNOWN or self.permission is PermissionType.UNKNOWN:
            return _invalid("Unknown entryFilter.")
        return None

    def matches(self, acl: Acl) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_pattern(acl)
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (PermissionType.ANY, acl.permission)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if self.name is None or self.name == acl.name:
            return True
        if self.pattern_type is not PatternType.MATCH:
            return False
        if acl.pattern_type is PatternType.PREFIXED:
            return self.name.startswith(acl.name)
        return acl.name == WILDCARD


def check_acl(acl: Acl) -> KafkaError | None:
    """Return why an ACL cannot be created, None if it can. Errors are those of Apache Kafka 4.4, in its order."""
    if acl.resource_type is ResourceType.CLUSTER and acl.name != CLUSTER_NAME:
        return _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.name:
        return _invalid("Invalid empty resource name")
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return _invalid(f"Invalid resourceType {acl.resource_type.name}")
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return _invalid(f"Invalid patternType {acl.pattern_type.name}")
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        return _invalid(f"Invalid operation {acl.operation.name}")
    if acl.permission not in (PermissionType.DENY, PermissionType.ALLOW):
        return _invalid(f"Invalid permissionType {acl.permission.name}")
    if ":" not in acl.principal:
        return _invalid(
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal type from "
            "the principal name)"
        )
    if not acl.host:
        return _invalid("Host pattern cannot be null or empty")
    return None


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
