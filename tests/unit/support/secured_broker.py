"""A broker with an authorizer and clients that have logged in, on a simulated machine."""

from collections.abc import Callable
from typing import Any

from kbroker.api.context import Identity
from kbroker.authorization.acl import CLUSTER_NAME, Acl, Operation, PatternType, PermissionType, ResourceType
from kbroker.authorization.rule_set import RuleSet
from kbroker.common import Principal
from protocol.apis import ALL_APIS, ApiKey
from protocol.messages import message_classes
from tests.unit.support.client import Client
from tests.unit.support.simulated_broker import Machine, broker_test

ROOT = "root"


def secured(function: Callable[..., Any]) -> Any:
    """Make a test of a broker with an authorizer. "root" is a super user."""
    name = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    return broker_test(authorizer_class_name=name, super_users=f"User:{ROOT}")(function)


def acl(text: str) -> Acl:
    """Return an ACL from e.g. "alice READ TOPIC orders"; the name of the cluster is left out."""
    user, operation, resource_type, *name = text.split()
    return Acl(
        ResourceType[resource_type], PatternType.LITERAL, name[0] if name else CLUSTER_NAME, f"User:{user}", "*",
        Operation[operation], PermissionType.ALLOW,
    )  # fmt: skip


def use_rules(m: Machine, *acls: str) -> None:
    """Let these be all ACLs."""
    authorizer = m.broker.services.authorizer
    assert authorizer is not None
    authorizer.use(RuleSet(map(acl, acls)))


async def login(m: Machine, user: str) -> Client:
    """Return a client that has logged in as a user."""
    before = set(m.broker._server.connections)
    client = await m.client()
    [connection] = set(m.broker._server.connections) - before
    connection.identity = Identity("PLAINTEXT", Principal("User", user))  # type: ignore[union-attr]
    return client


async def ask(client: Client, key: ApiKey, version: int | None = None, **fields: Any) -> Any:
    """Return the response to a request, by default of the highest version."""
    request_class, response_class = message_classes(key)
    highest = ALL_APIS[key].max_version
    return await client.request(request_class(**fields), highest if version is None else version, response_class)
