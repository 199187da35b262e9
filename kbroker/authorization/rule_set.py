"""The ACLs in force, and the decision about a request by them (Kafka: StandardAuthorizerData).

The rules, in order: a DENY that applies wins; an ALLOW that applies allows; else nothing is allowed. A resource that no
ACL covers at all is left to allow.everyone.if.no.acl.found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from kbroker.authorization.acl import ANY_USER, WILDCARD, Acl, Operation, PatternType, PermissionType, ResourceType


class _Pattern(NamedTuple):
    resource_type: ResourceType
    pattern_type: PatternType
    name: str


# The ACLs of one pattern, by principal.
_AclsByPrincipal = Mapping[str, tuple[Acl, ...]]


class RuleSet:
    """Immutable. The cost of a decision grows with the number of prefix lengths in use, not with that of ACLs."""

    __slots__ = ("_patterns", "_prefix_lengths", "acls")

    def __init__(self, acls: Iterable[Acl] = ()) -> None:
        self.acls: frozenset[Acl] = frozenset()
        self._patterns: Mapping[_Pattern, _AclsByPrincipal] = {}
        self._prefix_lengths: Mapping[ResourceType, tuple[int, ...]] = {}
        self._change((), frozenset(acls))

    def changed(self, removed: Iterable[Acl], added: Iterable[Acl]) -> RuleSet:
        """Return the rules after a change. An ACL that is in both stays."""
        new = RuleSet()
        new.acls, new._patterns, new._prefix_lengths = self.acls, self._patterns, self._prefix_lengths
        new._change(frozenset(removed), frozenset(added))
        return new

    def _change(self, removed: Iterable[Acl], added: frozenset[Acl]) -> None:
        gone = self.acls.intersection(removed) - added
        new = added - self.acls
        self.acls = (self.acls - gone) | new
        patterns = dict(self._patterns)
        changed: dict[_Pattern, dict[str, tuple[Acl, ...]]] = {}
        for acl in (*gone, *new):
            pattern = _Pattern(acl.resource_type, acl.pattern_type, acl.name)
            by_principal = changed.get(pattern)
            if by_principal is None:
                by_principal = changed[pattern] = dict(patterns.get(pattern, {}))
            others = by_principal.pop(acl.principal, ())
            own = tuple(each for each in others if each != acl) if acl in gone else (*others, acl)
            if own:
                by_principal[acl.principal] = own
        for pattern, by_principal in changed.items():
            if by_principal:
                patterns[pattern] = by_principal
            else:
                patterns.pop(pattern, None)
        self._patterns = patterns
        if all(pattern.pattern_type is PatternType.LITERAL for pattern in changed):
            return
        lengths: dict[ResourceType, set[int]] = {}
        for pattern in patterns:
            if pattern.pattern_type is PatternType.PREFIXED:
                lengths.setdefault(pattern.resource_type, set()).add(len(pattern.name))
        self._prefix_lengths = {resource_type: tuple(sorted(each)) for resource_type, each in lengths.items()}

    def decide(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool | None:
        """Return whether the ACLs allow an operation; None if no ACL covers the resource.

        `host`: as `canonical_host` returns it.
        """
        is_covered = is_allowed = False
        for by_principal in self._covering(resource_type, name):
            is_covered = True
            for each in (principal, ANY_USER):
                for acl in by_principal.get(each, ()):
                    if acl.applies_to(operation, host):
                        if acl.permission is PermissionType.DENY:
                            return False
                        is_allowed = True
        return is_allowed if is_covered else None

    def _covering(self, resource_type: ResourceType, name: str) -> Iterator[_AclsByPrincipal]:
        """Yield the ACLs of each pattern that covers a resource."""
        find = self._patterns.get
        literals = (name, WILDCARD) if name != WILDCARD else (name,)
        patterns = [_Pattern(resource_type, PatternType.LITERAL, each) for each in literals]
        for length in self._prefix_lengths.get(resource_type, ()):
            if length > len(name):
                break
            patterns.append(_Pattern(resource_type, PatternType.PREFIXED, name[:length]))
        for pattern in patterns:
            by_principal = find(pattern)
            if by_principal is not None:
                yield by_principal

    def allows_any(self, principal: str, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Return whether the ACLs allow an operation on at least one resource (Kafka: authorizeByResourceType).

        As in Kafka, only ACLs of this operation and of ALL count, and an allowed prefix counts unless a denied one
        begins it.
        """
        allowed: list[_Pattern] = []
        denied_names: set[str] = set()
        denied_prefixes: set[str] = set()
        for pattern, by_principal in self._patterns.items():
            if pattern.resource_type is not resource_type:
                continue
            for acl in (*by_principal.get(principal, ()), *by_principal.get(ANY_USER, ())):
                if acl.operation in (operation, Operation.ALL) and acl.applies_to(operation, host):
                    if acl.permission is PermissionType.ALLOW:
                        allowed.append(pattern)
                    elif pattern.pattern_type is PatternType.LITERAL:
                        denied_names.add(pattern.name)
                    else:
                        denied_prefixes.add(pattern.name)
        if WILDCARD in denied_names:
            return False
        lengths = {len(prefix) for prefix in denied_prefixes}
        for _, pattern_type, name in allowed:
            is_literal = pattern_type is PatternType.LITERAL
            if is_literal and name == WILDCARD:
                return True
            is_denied = (is_literal and name in denied_names) or any(
                name[:length] in denied_prefixes for length in lengths if length <= len(name)
            )
            if not is_denied:
                return True
        return False
