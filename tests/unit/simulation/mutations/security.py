"""Mistakes in logins, rights and quotas."""

from typing import Any

from kbroker.authorization.acl import PermissionType
from kbroker.authorization.authorizer import Access, Authorizer
from kbroker.authorization.rule_set import RuleSet
from kbroker.interbroker.controller_channel import BROKER_PRINCIPAL, ControllerChannel
from kbroker.quotas.client_quotas import ClientQuotaManager
from kbroker.server.socket_server import SocketServer
from kbroker.simulation.clients.workloads.security import USERS
from kbroker.simulation.scenarios.cluster_faults import controller, isolate
from kbroker.simulation.scenarios.faults import kill
from tests.unit.simulation.mutations.mutation import mutation, replaces
from tests.unit.simulation.mutations.shapes import only, with_values

SCENARIO = "cluster-security"
FORBIDDEN, REFUSED, REVOKED, QUOTA = ["forbidden request"], ["refused request"], ["revoked login"], ["wrong quota"]
# Few clients without logins.
CALM = only(members=0, seconds=6.0)
FAULTS = with_values(only(kill, controller, isolate, pause_s=1.0, seconds=6.0), members=0)


@mutation(SCENARIO, FORBIDDEN, CALM, first_seed=2)
@replaces(Authorizer, "use")
def known_rights_stay(real: Any, authorizer: Authorizer, rules: RuleSet) -> None:
    """The topics that a client was allowed to use stay allowed after the rules have changed."""
    accesses = dict(authorizer._accesses)
    known = {key: (set(access.readable_topics), set(access.writable_topics)) for key, access in accesses.items()}
    real(authorizer, rules)
    for (principal, host), (readable, writable) in known.items():
        access = authorizer.access(principal, host)
        access.readable_topics |= readable
        access.writable_topics |= writable


@mutation(SCENARIO, [*FORBIDDEN, *REFUSED], FAULTS, slow=True)
@replaces(Authorizer, "use")
def later_rules_are_not_used(_: Any, authorizer: Authorizer, rules: RuleSet) -> None:
    """A broker decides by the rules of its start."""


@mutation(SCENARIO, FORBIDDEN, CALM, first_seed=1)
@replaces(ControllerChannel, "forward")
def requests_are_forwarded_as_the_broker(
    real: Any, channel: Any, request: Any, version: int, client_id: Any, principal: Any, *rest: Any
) -> Any:
    """A forwarded request has the principal of the broker that forwards it."""
    return real(channel, request, version, client_id, BROKER_PRINCIPAL, *rest)


@mutation(SCENARIO, FORBIDDEN, CALM, first_seed=3)
@replaces(RuleSet, "_change")
def denials_are_overlooked(real: Any, rules: RuleSet, removed: Any, added: Any) -> None:
    """A DENY denies nothing."""
    real(rules, removed, frozenset(acl for acl in added if acl.permission is PermissionType.ALLOW))


@mutation(SCENARIO, QUOTA, CALM)
@replaces(ClientQuotaManager, "buckets_of")
def quotas_are_those_of_another_user(real: Any, quotas: Any, user: str, *rest: Any) -> Any:
    """The bytes of a user count for the quota of another one."""
    return real(quotas, USERS[USERS.index(user) - 1] if user in USERS else user, *rest)


@mutation(SCENARIO, REVOKED, CALM, first_seed=1, slow=True)
@replaces(SocketServer, "close_revoked")
def connections_of_former_passwords_stay(_: Any, server: Any) -> None:
    """A changed or deleted password ends no connection."""


@mutation(SCENARIO, FORBIDDEN, CALM, slow=True)
@replaces(Access, "current")
def fetches_are_checked_at_their_beginning(_: Any, access: Access) -> Access:
    """A Fetch that has waited returns records to a client that has lost the right meanwhile."""
    return access
