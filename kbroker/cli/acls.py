"""`kbroker acls`: what clients may do, on clusters whose brokers have an authorizer."""

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Annotated, Any, NamedTuple

import typer

from kbroker.authorization.acl import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
)
from kbroker.cli.common.client import admin_client, raise_error
from kbroker.cli.common.errors import usage_error
from kbroker.cli.common.options import DEFAULT_BOOTSTRAP, AsJson, Bootstrap, Yes, option
from kbroker.cli.common.output import confirm, print_rows
from protocol.messages.k29_acls import (
    AclCreation,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)

app = typer.Typer()

_O = Operation
# The operations of --producer and --consumer, as those of Kafka's kafka-acls.
_PRODUCER = {
    ResourceType.TOPIC: (_O.WRITE, _O.DESCRIBE, _O.CREATE),
    ResourceType.TRANSACTIONAL_ID: (_O.WRITE, _O.DESCRIBE),
}
_CONSUMER = {ResourceType.TOPIC: (_O.READ, _O.DESCRIBE), ResourceType.GROUP: (_O.READ,)}
_OPERATIONS = {each.name.replace("_", "").lower(): each for each in Operation if each > Operation.ANY}
_COLUMNS = ("resource_type", "pattern_type", "name", "principal", "host", "operation", "permission")


class ResourceOptions(NamedTuple):
    topic: Annotated[list[str] | None, option("--topic TOPIC", "A topic, or '*' for all; repeatable.")] = None
    group: Annotated[list[str] | None, option("--group GROUP", "A group, or '*' for all; repeatable.")] = None
    transactional_id: Annotated[
        list[str] | None, option("--transactional-id ID", "A transactional id, or '*' for all; repeatable.")
    ] = None
    cluster: Annotated[bool, option("--cluster", "The cluster itself.")] = False
    prefixed: Annotated[bool, option("--prefixed", "The names are prefixes of names.")] = False

    @property
    def pattern_type(self) -> PatternType:
        return PatternType.PREFIXED if self.prefixed else PatternType.LITERAL

    def resources(self) -> list[tuple[ResourceType, str]]:
        return [
            *((ResourceType.TOPIC, name) for name in self.topic or ()),
            *((ResourceType.GROUP, name) for name in self.group or ()),
            *((ResourceType.TRANSACTIONAL_ID, name) for name in self.transactional_id or ()),
            *([(ResourceType.CLUSTER, CLUSTER_NAME)] if self.cluster else []),
        ]


class RuleOptions(NamedTuple):
    allow: Annotated[
        list[str] | None, option("--allow PRINCIPAL", "A principal that may, such as User:alice; repeatable.")
    ] = None
    deny: Annotated[list[str] | None, option("--deny PRINCIPAL", "A principal that may not; repeatable.")] = None
    host: Annotated[
        list[str] | None, option("--host ADDRESS", "The client's address; repeatable.", show_default="all")
    ] = None
    operation: Annotated[
        list[str] | None,
        option("--operation OPERATION", "READ, WRITE, DESCRIBE, ...; repeatable.", show_default="ALL"),
    ] = None
    producer: Annotated[bool, option("--producer", "The operations of a producer.")] = False
    consumer: Annotated[bool, option("--consumer", "The operations of a consumer.")] = False

    def principals(self) -> list[tuple[PermissionType, str]]:
        """Raises CliError for one without a type."""
        for each in (*(self.allow or ()), *(self.deny or ())):
            if ":" not in each:
                raise usage_error(f"a principal has a type and a name, such as User:{each}, not {each!r}")
        return [
            *((PermissionType.ALLOW, each) for each in self.allow or ()),
            *((PermissionType.DENY, each) for each in self.deny or ()),
        ]

    def operations(self, resource_type: ResourceType, default: Operation) -> list[Operation]:
        """Return the operations on resources of a type."""
        named = [_operation(name) for name in self.operation or ()]
        for is_chosen, role in ((self.producer, _PRODUCER), (self.consumer, _CONSUMER)):
            named += role.get(resource_type, ()) if is_chosen else ()
        return list(dict.fromkeys(named)) or ([] if self.producer or self.consumer else [default])


@app.command("list")
def list_acls(
    resource: ResourceOptions,
    principal: Annotated[str | None, option("--principal PRINCIPAL", "ACLs of this principal only.")] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """List ACLs: those that cover the resources, or all of them.

    With --prefixed, those with exactly these prefixes.

    Example: kbroker acls list --topic orders
    """
    pattern_type = PatternType.PREFIXED if resource.prefixed else PatternType.MATCH
    filters = [
        AclFilter(resource_type, pattern_type, name, principal) for resource_type, name in resource.resources()
    ] or [AclFilter(pattern_type=pattern_type if resource.prefixed else PatternType.ANY, principal=principal)]
    _print(as_json, sorted(set(_described(bootstrap, filters))))


@app.command("add")
def add(
    resource: ResourceOptions, rule: RuleOptions, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, as_json: AsJson = False
) -> None:
    """Allow principals to do something, or deny it. A DENY wins over any ALLOW.

    Example: kbroker acls add --topic orders --allow User:alice --producer

    Example: kbroker acls add --topic eu. --group eu. --prefixed --allow User:bob --consumer
    """
    if not rule.principals():
        raise usage_error("name a principal with --allow or --deny")
    if not resource.resources():
        raise usage_error("name a resource with --topic, --group, --transactional-id or --cluster")
    acls = [
        Acl(resource_type, _pattern_type(resource, resource_type), name, principal, host, operation, permission)
        for resource_type, name in resource.resources()
        for operation in rule.operations(resource_type, Operation.ALL)
        for (permission, principal), host in product(rule.principals(), rule.host or [WILDCARD])
    ]
    if not acls:
        raise usage_error("--producer needs --topic or --transactional-id, --consumer needs --topic or --group")
    creations = [
        AclCreation(
            resource_type=acl.resource_type, resource_name=acl.name, resource_pattern_type=acl.pattern_type,
            principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission,
        )
        for acl in acls
    ]  # fmt: skip
    with admin_client(bootstrap) as client:
        response = client.request(CreateAclsRequest(creations=creations), CreateAclsResponse)
    for acl, result in zip(acls, response.results, strict=True):
        raise_error(result.error_code, result.error_message, f"{acl}: ")
    _print(as_json, acls)


@app.command("remove")
def remove(
    resource: ResourceOptions,
    rule: RuleOptions,
    yes: Yes = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    as_json: AsJson = False,
) -> None:
    """Remove ACLs, and print them. Options that are not set match all values.

    Example: kbroker acls remove --topic orders --allow User:alice
    """
    if not resource.resources() and not rule.principals():
        raise usage_error("name a resource with --topic, --group, --transactional-id or --cluster, or a principal")
    resources: list[tuple[ResourceType, str | None]] = [*resource.resources()] or [(ResourceType.ANY, None)]
    principals: list[tuple[PermissionType, str | None]] = [*rule.principals()] or [(PermissionType.ANY, None)]
    hosts: list[str | None] = list(rule.host) if rule.host else [None]
    filters = [
        AclFilter(
            resource_type, PatternType.ANY if name is None else _pattern_type(resource, resource_type), name,
            principal, host, operation, permission,
        )
        for resource_type, name in resources
        for operation in rule.operations(resource_type, Operation.ANY)
        for permission, principal in principals
        for host in hosts
    ]  # fmt: skip
    found = sorted(set(_described(bootstrap, filters)))
    if found:
        confirm(f"Remove {len(found)} ACLs?", yes)
        with admin_client(bootstrap) as client:
            rows = [DeleteAclsFilter(**_fields(filter)) for filter in filters]
            response = client.request(DeleteAclsRequest(filters=rows), DeleteAclsResponse)
        for result in response.filter_results:
            raise_error(result.error_code, result.error_message)
        found = sorted({_removed(each) for result in response.filter_results for each in result.matching_acls})
    _print(as_json, found)


def _pattern_type(resource: ResourceOptions, resource_type: ResourceType) -> PatternType:
    return PatternType.LITERAL if resource_type is ResourceType.CLUSTER else resource.pattern_type


def _operation(name: str) -> Operation:
    operation = _OPERATIONS.get(name.replace("_", "").replace("-", "").lower())
    if operation is None:
        raise usage_error(f"--operation must be one of {', '.join(each.name for each in _OPERATIONS.values())}")
    return operation


def _described(bootstrap: str, filters: Iterable[AclFilter]) -> Iterator[Acl]:
    with admin_client(bootstrap) as client:
        for filter in filters:
            response = client.request(DescribeAclsRequest(**_fields(filter)), DescribeAclsResponse)
            raise_error(response.error_code, response.error_message)
            for each in response.resources:
                pattern = ResourceType(each.resource_type), PatternType(each.pattern_type), each.resource_name
                for row in each.acls:
                    permission = PermissionType(row.permission_type)
                    yield Acl(*pattern, row.principal, row.host, Operation(row.operation), permission)


def _fields(filter: AclFilter) -> dict[str, Any]:
    """Return the fields of a filter in a request."""
    names = ("resource_type_filter", "pattern_type_filter", "resource_name_filter", "principal_filter", "host_filter",
             "operation", "permission_type")  # fmt: skip
    return dict(zip(names, filter, strict=True))


def _removed(row: DeleteAclsMatchingAcl) -> Acl:
    return Acl(
        ResourceType(row.resource_type), PatternType(row.pattern_type), row.resource_name, row.principal, row.host,
        Operation(row.operation), PermissionType(row.permission_type),
    )  # fmt: skip


def _print(as_json: bool, acls: Iterable[Acl]) -> None:
    rows = [tuple(getattr(each, "name", each) for each in acl) for acl in acls]
    print_rows(as_json, [dict(zip(_COLUMNS, row, strict=True)) for row in rows], _COLUMNS, rows)
