"""`kbroker acls` with a broker that stores ACLs as kbroker and Kafka do."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from kbroker.authorization.acl import Acl, AclFilter, Operation, PatternType, PermissionType, ResourceType
from kbroker.cli import main
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k29_acls import (
    AclCreationResult,
    AclDescription,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from tests.unit.support.socket_broker import SocketBroker, metadata

Row = tuple[str, str, str, str, str, str, str]


def filter_of(row: Any) -> AclFilter:
    return AclFilter(
        ResourceType(row.resource_type_filter), PatternType(row.pattern_type_filter), row.resource_name_filter,
        row.principal_filter, row.host_filter, Operation(row.operation), PermissionType(row.permission_type),
    )  # fmt: skip


class Broker(SocketBroker):
    def __init__(self) -> None:
        self.acls: set[Acl] = set()
        self.error = ErrorCode.NONE
        super().__init__(
            {
                ApiKey.DESCRIBE_ACLS: self.describe,
                ApiKey.CREATE_ACLS: self.create,
                ApiKey.DELETE_ACLS: self.delete,
            }
        )
        self.handlers[ApiKey.METADATA] = metadata(self)

    def describe(self, request: Any) -> DescribeAclsResponse:
        resources = [
            DescribeAclsResource(
                resource_type=acl.resource_type, resource_name=acl.name, pattern_type=acl.pattern_type,
                acls=[AclDescription(principal=acl.principal, host=acl.host, operation=acl.operation,
                                     permission_type=acl.permission)],
            )
            for acl in self.acls if filter_of(request).matches(acl)
        ]  # fmt: skip
        return DescribeAclsResponse(error_code=self.error, error_message="no authorizer", resources=resources)

    def create(self, request: Any) -> CreateAclsResponse:
        for row in request.creations:
            self.acls.add(
                Acl(
                    ResourceType(row.resource_type), PatternType(row.resource_pattern_type), row.resource_name,
                    row.principal, row.host, Operation(row.operation), PermissionType(row.permission_type),
                )
            )  # fmt: skip
        results = [AclCreationResult(error_code=self.error, error_message="refused") for _ in request.creations]
        return CreateAclsResponse(results=results)

    def delete(self, request: Any) -> DeleteAclsResponse:
        results = []
        for row in request.filters:
            matching = {acl for acl in self.acls if filter_of(row).matches(acl)}
            rows = [
                DeleteAclsMatchingAcl(
                    resource_type=acl.resource_type, resource_name=acl.name, pattern_type=acl.pattern_type,
                    principal=acl.principal, host=acl.host, operation=acl.operation, permission_type=acl.permission,
                )
                for acl in matching
            ]  # fmt: skip
            results.append(DeleteAclsFilterResult(matching_acls=rows))
            self.acls -= matching
        return DeleteAclsResponse(filter_results=results)

    def rows(self) -> list[str]:
        return sorted(map(str, self.acls))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    broker = Broker()
    monkeypatch.setenv("KBROKER_BOOTSTRAP", f"127.0.0.1:{broker.port}")
    yield broker
    broker.close()


def run(*arguments: str) -> int:
    return main(["acls", *arguments])


def test_a_producer_gets_the_operations_of_kafka_acls(broker: Broker) -> None:
    assert run("add", "--topic", "t", "--transactional-id", "x", "--allow", "User:a", "--producer") == 0
    assert broker.rows() == [
        "ALLOW CREATE on TOPIC t to User:a from *",
        "ALLOW DESCRIBE on TOPIC t to User:a from *",
        "ALLOW DESCRIBE on TRANSACTIONAL_ID x to User:a from *",
        "ALLOW WRITE on TOPIC t to User:a from *",
        "ALLOW WRITE on TRANSACTIONAL_ID x to User:a from *",
    ]


def test_a_consumer_and_prefixes(broker: Broker) -> None:
    assert run("add", "--topic", "t", "--group", "g", "--prefixed", "--allow", "User:a", "--consumer") == 0
    assert broker.rows() == [
        "ALLOW DESCRIBE on PREFIXED TOPIC t to User:a from *",
        "ALLOW READ on PREFIXED GROUP g to User:a from *",
        "ALLOW READ on PREFIXED TOPIC t to User:a from *",
    ]


def test_several_principals_hosts_and_operations(broker: Broker) -> None:
    run("add", "--cluster", "--prefixed", "--deny", "User:a", "--allow", "User:b", "--host", "10.0.0.1",
        "--operation", "AlterConfigs", "--operation", "describe_configs")  # fmt: skip
    assert broker.rows() == [
        f"{permission} {operation} on CLUSTER kafka-cluster to {user} from 10.0.0.1"
        for permission, user in (("ALLOW", "User:b"), ("DENY", "User:a"))
        for operation in ("ALTER_CONFIGS", "DESCRIBE_CONFIGS")
    ]


def test_all_operations_are_the_default(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("add", "--topic", "*", "--allow", "User:a", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {
            "resource_type": "TOPIC",
            "pattern_type": "LITERAL",
            "name": "*",
            "principal": "User:a",
            "host": "*",
            "operation": "ALL",
            "permission": "ALLOW",
        }
    ]


def test_the_list_has_what_covers_a_resource(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--topic", "t"], ["--topic", "te", "--prefixed"], ["--topic", "*"], ["--group", "test"]):
        run("add", *words, "--allow", "User:a", "--operation", "describe")
    capsys.readouterr()

    def names(*arguments: str) -> list[str]:
        assert run("list", *arguments, "--json") == 0
        return [f"{row['pattern_type']} {row['name']}" for row in json.loads(capsys.readouterr().out)]

    assert names("--topic", "test") == ["LITERAL *", "PREFIXED te"]
    assert names("--topic", "test", "--group", "test") == ["LITERAL *", "PREFIXED te", "LITERAL test"]
    assert names("--topic", "te", "--prefixed") == ["PREFIXED te"]
    assert names("--prefixed") == ["PREFIXED te"]
    assert names() == ["LITERAL *", "LITERAL t", "PREFIXED te", "LITERAL test"]
    assert names("--principal", "User:b") == []


def test_what_is_removed_is_printed(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    run("add", "--topic", "t", "--topic", "u", "--allow", "User:a", "--allow", "User:b", "--consumer")
    capsys.readouterr()
    assert run("remove", "--topic", "t", "--allow", "User:a", "--json") == 0
    assert [row["operation"] for row in json.loads(capsys.readouterr().out)] == ["READ", "DESCRIBE"]
    assert run("remove", "--topic", "u", "--operation", "read") == 0
    assert broker.rows() == [
        "ALLOW DESCRIBE on TOPIC t to User:b from *",
        "ALLOW DESCRIBE on TOPIC u to User:a from *",
        "ALLOW DESCRIBE on TOPIC u to User:b from *",
        "ALLOW READ on TOPIC t to User:b from *",
    ]
    assert run("remove", "--allow", "User:b") == 0
    assert broker.rows() == ["ALLOW DESCRIBE on TOPIC u to User:a from *"]
    assert run("remove", "--topic", "t") == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["add", "--topic", "t"], "name a principal with --allow or --deny"),
        (["add", "--allow", "User:a"], "name a resource with --topic"),
        (["add", "--group", "g", "--allow", "User:a", "--producer"], "--producer needs --topic or --transactional-id"),
        (["add", "--topic", "t", "--allow", "User:a", "--operation", "any"], "--operation must be one of ALL, READ,"),
        (["remove", "--operation", "read"], "name a resource with --topic"),
    ],
)
def test_incomplete_commands(
    broker: Broker, arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert reason in capsys.readouterr().err
    assert broker.requests == []


def test_errors_of_the_broker_are_printed(broker: Broker, capsys: pytest.CaptureFixture[str]) -> None:
    broker.error = ErrorCode.SECURITY_DISABLED
    assert run("list") == 1
    assert "no authorizer" in capsys.readouterr().err
    assert run("add", "--topic", "t", "--allow", "User:a") == 1
    assert "ALLOW ALL on TOPIC t to User:a from *: " in capsys.readouterr().err
