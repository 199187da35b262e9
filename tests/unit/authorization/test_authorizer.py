"""The rights of clients, which their connections share until the rules change."""

import json
from pathlib import Path

from kbroker.authorization import authorizer as module
from kbroker.authorization.acl import ANY_USER, Acl, Operation, PatternType, PermissionType, ResourceType
from kbroker.authorization.authorizer import Authorizer
from kbroker.authorization.rule_set import RuleSet
from kbroker.common import Principal

ALICE, BOB, ADMIN = (Principal("User", name) for name in ("alice", "bob", "admin"))
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER
READ, WRITE = Operation.READ, Operation.WRITE
HOST = "10.0.0.1"


def acl(operation: Operation, name: str = "t", principal: Principal = ALICE, permission: str = "ALLOW") -> Acl:
    return Acl(
        TOPIC, PatternType.LITERAL, name, str(principal), "*", operation, PermissionType[permission]
    )  # fmt: skip


def authorizer(*acls: Acl, allows_everyone_if_no_acl: bool = False) -> Authorizer:
    return Authorizer(RuleSet(acls), [ADMIN], allows_everyone_if_no_acl)


def test_a_client_may_do_what_an_acl_allows():
    alice = authorizer(acl(READ)).access(ALICE, HOST)
    assert alice.allows(READ, TOPIC, "t")
    assert alice.readable_topics == {"t"}
    assert alice.allows(READ, TOPIC, "t")
    assert not alice.allows(WRITE, TOPIC, "t")
    assert not alice.allows(READ, TOPIC, "u")
    assert alice.readable_topics == {"t"}
    assert not alice.writable_topics


def test_super_users_and_brokers_may_do_everything_despite_a_deny():
    rules = authorizer(acl(Operation.ALL, "*", ADMIN, "DENY"))
    for access in (rules.access(ADMIN, HOST), rules.broker_access):
        assert access.allows(READ, TOPIC, "t")
        assert access.allows_any(WRITE, TOPIC)
        assert access.operations(TOPIC, "t") == 3576, "all operations of topics"
    assert not rules.access(Principal("Group", "admin"), HOST).allows(READ, TOPIC, "t")


def test_everyone_is_allowed_only_where_no_acl_covers_the_resource():
    bob = authorizer(acl(READ), allows_everyone_if_no_acl=True).access(BOB, HOST)
    assert not bob.allows(READ, TOPIC, "t")
    assert bob.allows(READ, TOPIC, "u")
    assert bob.allows_any(WRITE, TOPIC)


def test_operations_are_a_bit_set():
    alice = authorizer(acl(READ)).access(ALICE, HOST)
    assert alice.operations(TOPIC, "t") == 1 << READ | 1 << Operation.DESCRIBE
    assert alice.operations(TOPIC, "u") == alice.operations(CLUSTER, "kafka-cluster") == 0


def test_connections_share_an_access_until_the_rules_change():
    rules = authorizer(acl(READ))
    first = rules.access(ALICE, HOST)
    assert rules.access(ALICE, HOST) is first
    assert first.number not in (rules.access(BOB, HOST).number, rules.access(ALICE, "10.0.0.2").number)
    assert first.allows(READ, TOPIC, "t")
    rules.use(rules.rules.changed([acl(READ)], []))
    assert first.rules is not rules.rules
    second = rules.access(ALICE, HOST)
    assert second is not first
    assert second.number != first.number
    assert not second.allows(READ, TOPIC, "t")
    assert rules.broker_access.rules is rules.rules


def test_the_memory_of_all_rights_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "MAX_NAMES", 3)
    monkeypatch.setattr(module, "MAX_ALL_NAMES", 5)
    monkeypatch.setattr(module, "MAX_ACCESSES", 10)
    rules = Authorizer(RuleSet([acl(READ, "*", Principal(*ANY_USER.split(":")))]), [], False)
    first = rules.access(ALICE, HOST)
    assert all(first.allows(READ, TOPIC, f"t{number}") for number in range(4))
    assert len(first.readable_topics) == 3
    second = rules.access(BOB, HOST)
    assert all(second.allows(READ, TOPIC, f"t{number}") for number in range(3))
    assert first.rules is not rules.rules, "all are made again"
    assert not first.readable_topics | second.readable_topics
    assert second.allows(READ, TOPIC, "t1")
    assert not second.readable_topics, "one of former rules holds nothing"
    for number in range(25):
        rules.access(Principal("User", str(number)), HOST)
    assert rules.access(Principal("User", "24"), HOST).number == 27


def test_random_questions_are_decided_as_by_kafka():
    """Of the classes of Apache Kafka 4.4.0, each line: allow.everyone.if.no.acl.found, ACLs, and questions.

    A question has a principal, a host, an operation, a type and a name; then the responses of `authorize` and of
    `authorizeByResourceType`. User:super is a super user.
    """
    asked = 0
    for line in Path(__file__).with_name("kafka_4_4_decisions.jsonl").open():
        everyone, acls, questions = json.loads(line)
        rules = RuleSet(
            Acl(ResourceType(type), PatternType(pattern), *texts, Operation(operation), PermissionType(permission))
            for type, pattern, *texts, operation, permission in acls
        )
        authorizer = Authorizer(rules, [Principal("User", "super")], bool(everyone))
        for user, host, operation, type, name, is_allowed, is_any_allowed in questions:
            access = authorizer.access(Principal(*user.split(":")), host)
            arguments = Operation(operation), ResourceType(type)
            assert access.allows(*arguments, name) == is_allowed, (line, user, host, *arguments, name)
            assert access.allows_any(*arguments) == is_any_allowed, (line, user, host, *arguments)
            asked += 1
    assert asked == 1600
