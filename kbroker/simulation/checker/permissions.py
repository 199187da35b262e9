"""What users may do at each moment, and whether brokers followed it.

The rules change while clients use them. A change is in force somewhere between the beginning of its request and
WINDOW_S after the response. So each setting has, at a moment, one possible value, or several: those before and after a
change in progress, and forever those of attempts without a response, which may be carried out at any time.

A broker that does not keep up with the coordination service decides by what it knew before (OutOfDate). The broker that
a request was forwarded to is not known: then the window is that of the broker that is most out of date.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from kbroker.authorization.acl import Acl, Operation, PatternType, PermissionType
from kbroker.simulation.checker.anomaly import Anomaly, anomaly
from kbroker.simulation.checker.history import (
    GuardedRequest,
    OperationOf,
    Outcome,
    OutOfDate,
    Right,
    SecurityChange,
    SettingKey,
)
from kbroker.simulation.checker.index import Index

WINDOW_S = 1.0
NS_PER_S = 1_000_000_000
# How long a client may exceed its quota at first (quota.window.num=2), and what a measurement may be off.
BURST_S, TOLERANCE_S = 1.0, 0.5
EVERYBODY = "User:*"


class Settings:
    """The possible values of ACLs (0 or 1), passwords and quotas over time; 0 before the first change."""

    def __init__(self, changes: Sequence[OperationOf[SecurityChange]]) -> None:
        self._times: dict[SettingKey, list[int]] = {}
        self._values: dict[SettingKey, list[frozenset[int]]] = {}
        late: dict[SettingKey, frozenset[int]] = {}
        for change in changes:
            key, value = change.action.key, frozenset({change.action.value})
            times, values = self._times.setdefault(key, [0]), self._values.setdefault(key, [frozenset({0})])
            times.append(change.begun_ns)
            values.append(values[-1] | value)
            if change.action.attempts_lost:
                late[key] = late.get(key, frozenset()) | value
            if change.outcome is Outcome.OK and change.ended_ns is not None:
                times.append(change.ended_ns)
                values.append(value | late.get(key, frozenset()))
        self.acls = [key for key in self._times if isinstance(key, Acl)]

    def during(self, key: SettingKey, start_ns: int, end_ns: int) -> frozenset[int]:
        """Return the values that were possible at some moment of this time."""
        times = self._times.get(key)
        if times is None:
            return frozenset({0})
        first = max(bisect_right(times, start_ns) - 1, 0)
        return frozenset[int]().union(*self._values[key][first : bisect_right(times, end_ns)])

    def decisions(self, user: str, rights: Sequence[Right], start_ns: int, end_ns: int) -> set[bool]:
        """Return whether brokers may have allowed, and may have refused, a request that needs one of the rights."""
        found = [self._decisions(f"User:{user}", right, start_ns, end_ns) for right in rights]
        allowed = {True} if any(True in each for each in found) else set()
        return allowed | ({False} if all(False in each for each in found) else set())

    def _decisions(self, principal: str, right: Right, start_ns: int, end_ns: int) -> set[bool]:
        """A DENY wins over any ALLOW, and what no ACL allows is denied."""
        allows, denies = {0}, {0}
        for acl in self.acls:
            if acl.principal in (principal, EVERYBODY) and _covers(acl, right):
                values = self.during(acl, start_ns, end_ns)
                if acl.permission is PermissionType.ALLOW:
                    allows = {max(one, other) for one in allows for other in values}
                else:
                    denies = {max(one, other) for one in denies for other in values}
        return {bool(allow and not deny) for allow in allows for deny in denies}


def _covers(acl: Acl, right: Right) -> bool:
    operation, resource_type, name = right
    if acl.resource_type is not resource_type or acl.operation not in (operation, Operation.ALL):
        return False
    is_prefix = acl.pattern_type is PatternType.PREFIXED
    return acl.name in (name, "*") or (is_prefix and name.startswith(acl.name))


class _OutOfDateBrokers:
    """When brokers did not keep up."""

    def __init__(self, spells: Sequence[OperationOf[OutOfDate]]) -> None:
        self._spells: dict[int, list[OperationOf[OutOfDate]]] = {}
        for spell in spells:
            self._spells.setdefault(spell.action.broker, []).append(spell)

    def known_since(self, request: OperationOf[GuardedRequest], begun_ns: int) -> int:
        """Return the earliest time whose rules may have decided about a request that began then."""
        broker = request.action.broker
        return min(self._known_since(each, begun_ns) for each in ([broker] if broker else {0, *self._spells}))

    def _known_since(self, broker: int, begun_ns: int) -> int:
        window_ns, since = int(WINDOW_S * NS_PER_S), begun_ns
        for spell in reversed(self._spells.get(broker, ())):
            if spell.begun_ns < since and (spell.ended_ns is None or spell.ended_ns + window_ns > since):
                since = spell.begun_ns
        return since - window_ns


def permission_anomalies(index: Index) -> Iterator[Anomaly]:
    requests = [each for each in index.of(GuardedRequest) if each.outcome is not Outcome.UNKNOWN]
    settings, brokers = Settings(index.of(SecurityChange)), _OutOfDateBrokers(index.of(OutOfDate))
    for request in requests:
        yield from _wrong_decision(request, settings, brokers)
    by_connection: dict[str, list[OperationOf[GuardedRequest]]] = {}
    for request in requests:
        if request.action.produced_bytes:
            by_connection.setdefault(request.process, []).append(request)
    for produced in by_connection.values():
        yield from _wrong_throttling(produced, settings, brokers)


def _wrong_decision(
    request: OperationOf[GuardedRequest], settings: Settings, brokers: _OutOfDateBrokers
) -> Iterator[Anomaly]:
    action, is_allowed = request.action, request.outcome is Outcome.OK
    assert request.ended_ns is not None
    # Records that were written later show that the rules were applied after that.
    start_ns = brokers.known_since(request, max(request.begun_ns, action.newest_record_ns))
    passwords = settings.during(("password", action.user), start_ns, request.ended_ns)
    if action.rights and is_allowed not in settings.decisions(action.user, action.rights, start_ns, request.ended_ns):
        kind = "forbidden request" if is_allowed else "refused request"
        yield anomaly(kind, f"{action.user}, although the rules since {start_ns / NS_PER_S:.3f} differ.", request)
    if (is_allowed or action.rights) and action.password not in passwords:
        text = f"The password {action.password} of {action.user} was not valid since {start_ns / NS_PER_S:.3f}."
        yield anomaly("revoked login", text, request)
    if not is_allowed and not action.rights and passwords == {action.password}:
        yield anomaly("refused login", f"The password {action.password} of {action.user} was valid.", request)


def _wrong_throttling(
    produced: Sequence[OperationOf[GuardedRequest]], settings: Settings, brokers: _OutOfDateBrokers
) -> Iterator[Anomaly]:
    """Check the Produce requests of one connection against its user's quota, in bytes per second.

    After a request above the quota, the broker must not serve the next one before the connection has waited.
    """
    first, total, quota = None, 0, 0
    for request in produced:
        action = request.action
        assert request.ended_ns is not None
        quotas = settings.during(
            ("quota", action.user), brokers.known_since(request, request.begun_ns), request.ended_ns
        )
        if action.throttle_ms and quotas == {0}:
            yield anomaly("wrong quota", f"{action.user} has no quota, and waits for {action.throttle_ms} ms.", request)
        if first is None or quotas != {quota}:
            first, total, quota = request, 0, max(quotas)
            if len(quotas) > 1 or not quota:
                first = None
                continue
        seconds = (request.ended_ns - first.begun_ns) / NS_PER_S + BURST_S + TOLERANCE_S
        if total > quota * seconds:
            text = f"{action.user} has sent {total} bytes in {seconds:.1f} s, the burst included, with {quota} B/s."
            yield anomaly("wrong quota", text, first, request)
            return
        total += action.produced_bytes
