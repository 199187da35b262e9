"""The rights of clients under the current ACLs (Kafka: StandardAuthorizer)."""

from __future__ import annotations

from collections.abc import Collection

from kbroker.authorization.acl import SUPPORTED_OPERATIONS, Operation, ResourceType, canonical_host, operation_bits
from kbroker.authorization.rule_set import RuleSet
from kbroker.common import ANONYMOUS, Principal

# The names of topics that one Access holds as allowed for READ, and for WRITE; those that all of them hold; and the
# principals with their hosts for which there is an Access. Beyond that, all are made again.
MAX_NAMES = 10_000
MAX_ALL_NAMES = 200_000
MAX_ACCESSES = 10_000


class Access:
    """The rights of one principal from one host under one RuleSet.

    All connections of the principal from the host share it, until the rules change. `number`: no other Access has it.
    `readable_topics`, `writable_topics`: topics that are known to be allowed; others may be, too. Where each of many
    topics is checked, look there first.
    """

    __slots__ = ("_any", "_authorizer", "_client", "_host", "_is_super_user", "_principal", "number",
                 "readable_topics", "rules", "writable_topics")  # fmt: skip

    def __init__(
        self, authorizer: Authorizer, number: int, principal: Principal, host: str, is_super_user: bool
    ) -> None:
        self.rules = authorizer.rules
        self.number = number
        self.readable_topics: set[str] = set()
        self.writable_topics: set[str] = set()
        self._authorizer = authorizer
        self._client, self._principal = principal, str(principal)
        self._host = canonical_host(host)
        self._is_super_user = is_super_user
        self._any: dict[tuple[Operation, ResourceType], bool] = {}

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        if self._is_super_user:
            return True
        names = None
        if resource_type is ResourceType.TOPIC:
            if operation is Operation.READ:
                names = self.readable_topics
            elif operation is Operation.WRITE:
                names = self.writable_topics
            if names is not None and name in names:
                return True
        is_allowed = self.rules.decide(self._principal, self._host, operation, resource_type, name)
        if is_allowed is None:
            is_allowed = self._authorizer.allows_everyone_if_no_acl
        if is_allowed and names is not None:
            self._authorizer.hold(self, names, name)
        return is_allowed

    def current(self) -> Access:
        """Return the rights of the same client under the rules that are in force now."""
        authorizer = self._authorizer
        return self if self.rules is authorizer.rules else authorizer.access(self._client, self._host)

    def allows_any(self, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the operation is allowed on at least one resource (Kafka: authorizeByResourceType)."""
        key = operation, resource_type
        is_allowed = self._any.get(key)
        if is_allowed is None:
            # Kafka's first question, with this name: it allows super users, and where no ACL covers the name.
            is_allowed = self.allows(operation, resource_type, "hardcode")
            is_allowed = is_allowed or self.rules.allows_any(self._principal, self._host, operation, resource_type)
            self._any[key] = is_allowed
        return is_allowed

    def operations(self, resource_type: ResourceType, name: str) -> int:
        """Return the operations that are allowed, as a bit set for the field "authorized operations" of a response."""
        supported = SUPPORTED_OPERATIONS[resource_type]
        return operation_bits(each for each in supported if self.allows(each, resource_type, name))


class Authorizer:
    """Holds the rules in force. `broker_access`: of the brokers of this cluster, which may do everything."""

    def __init__(self, rules: RuleSet, super_users: Collection[Principal], allows_everyone_if_no_acl: bool) -> None:
        self.rules = rules
        self.allows_everyone_if_no_acl = allows_everyone_if_no_acl
        self._super_users = frozenset(super_users)
        self._accesses: dict[tuple[Principal, str], Access] = {}
        self._last_number = self._held = 0
        self.broker_access = Access(self, 0, ANONYMOUS, "", is_super_user=True)

    def use(self, rules: RuleSet) -> None:
        """Decide by other rules from now on."""
        for access in self._accesses.values():
            access.readable_topics.clear()
            access.writable_topics.clear()
        self._accesses = {}
        self._held = 0
        self.rules = self.broker_access.rules = rules

    def access(self, principal: Principal, host: str) -> Access:
        """Return the rights of a principal that is connected from a host, an address."""
        access = self._accesses.get((principal, host))
        if access is None:
            if len(self._accesses) >= MAX_ACCESSES:
                self._renew()
            self._last_number += 1
            access = Access(self, self._last_number, principal, host, principal in self._super_users)
            self._accesses[principal, host] = access
        return access

    def hold(self, access: Access, names: set[str], name: str) -> None:
        """Add an allowed name to the sets of an Access, if it is a current one."""
        if access.rules is not self.rules or len(names) >= MAX_NAMES:
            return
        if self._held >= MAX_ALL_NAMES:
            self._renew()
            return
        self._held += 1
        names.add(name)

    def _renew(self) -> None:
        """Make all Access objects again: their memory is bounded."""
        self.use(self.rules.changed((), ()))
