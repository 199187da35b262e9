"""Decisions by ACLs: single rules of Kafka's authorizer, and random ACLs against a slow oracle."""

from collections.abc import Iterable
from random import Random

import pytest

from kbroker.authorization.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    PermissionType,
    ResourceType,
    canonical_host,
)
from kbroker.authorization.rule_set import RuleSet

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
ALICE, HOST = "User:alice", "10.0.0.1"


def acl(
    operation: Operation, name: str = "t", permission: PermissionType = ALLOW, pattern: PatternType = LITERAL,
    principal: str = ALICE, host: str = "*", type: ResourceType = TOPIC,
) -> Acl:  # fmt: skip
    return Acl(type, pattern, name, principal, host, operation, permission)


def decide(acls: Iterable[Acl], operation: Operation, name: str = "t", type: ResourceType = TOPIC) -> bool | None:
    return RuleSet(acls).decide(ALICE, HOST, operation, type, name)


def test_without_an_acl_that_covers_the_resource_nothing_is_decided():
    assert decide([], READ) is None
    assert decide([acl(READ, "u"), acl(READ, type=GROUP), acl(READ, "tt", pattern=PREFIXED)], READ) is None


@pytest.mark.parametrize(("principal", "host"), [("User:bob", "*"), (ALICE, "10.0.0.2"), ("User:*", "10.0.0.2")])
def test_an_acl_of_others_covers_the_resource_but_allows_nothing(principal: str, host: str):
    assert decide([acl(READ, principal=principal, host=host)], READ) is False


@pytest.mark.parametrize(("principal", "host"), [(ALICE, "*"), (ALICE, HOST), ("User:*", "*"), ("User:*", HOST)])
def test_an_acl_applies_to_its_principal_and_host(principal: str, host: str):
    assert decide([acl(READ, principal=principal, host=host)], READ)


@pytest.mark.parametrize(("name", "pattern"), [("t", LITERAL), ("*", LITERAL), ("t", PREFIXED), ("to", PREFIXED)])
def test_a_pattern_covers_a_name(name: str, pattern: PatternType):
    assert decide([acl(READ, name, pattern=pattern)], READ, "topic" if pattern is PREFIXED else "t")


def test_any_deny_wins():
    for denied in (acl(READ, "*", DENY), acl(ALL, "t", DENY), acl(READ, "t", DENY, PREFIXED, "User:*")):
        assert decide([acl(ALL, "t"), acl(READ, "t"), denied], READ) is False


@pytest.mark.parametrize("operation", ["READ", "WRITE", "DELETE", "ALTER"])
def test_what_implies_describe_does_so_only_if_it_allows(operation: str):
    assert decide([acl(Operation[operation])], DESCRIBE)
    assert decide([acl(Operation[operation], permission=DENY), acl(DESCRIBE)], DESCRIBE)


def test_alter_configs_implies_describe_configs():
    assert decide([acl(Operation.ALTER_CONFIGS)], Operation.DESCRIBE_CONFIGS)
    assert not decide([acl(Operation.ALTER_CONFIGS)], DESCRIBE)
    assert not decide([acl(Operation.CREATE)], DESCRIBE)


@pytest.mark.parametrize("stored", ["::1", "0:0:0:0:0:0:0:1"])
def test_hosts_are_addresses_in_any_notation(stored: str):
    rules = RuleSet([acl(READ, host=stored)])
    assert rules.decide(ALICE, canonical_host("::1"), READ, TOPIC, "t")
    mapped = RuleSet([acl(READ, host="10.0.0.1")])
    assert mapped.decide(ALICE, canonical_host("::ffff:10.0.0.1"), READ, TOPIC, "t")


def test_any_topic_means_one_that_no_deny_dominates():
    def any_topic(*acls: Acl) -> bool:
        return RuleSet(acls).allows_any(ALICE, HOST, WRITE, TOPIC)

    assert not any_topic()
    assert any_topic(acl(WRITE))
    assert not any_topic(acl(READ)), "an operation that implies another does not count, as in Kafka"
    assert any_topic(acl(WRITE), acl(WRITE, "u", DENY))
    assert not any_topic(acl(WRITE), acl(ALL, "t", DENY))
    assert not any_topic(acl(WRITE, "abc"), acl(WRITE, "abc", pattern=PREFIXED), acl(WRITE, "ab", DENY, PREFIXED))
    assert any_topic(acl(WRITE, "abc", pattern=PREFIXED), acl(WRITE, "abc", DENY)), "the prefix covers more names"
    assert any_topic(acl(WRITE, "*"), acl(WRITE, "t", DENY, PREFIXED))
    assert not any_topic(acl(WRITE, "*"), acl(WRITE), acl(WRITE, "*", DENY, principal="User:*"))
    assert not any_topic(acl(WRITE, host="10.0.0.2"), acl(WRITE, principal="User:bob"))


def test_filters_match_as_in_kafka():
    prefixed, literal, wildcard = acl(READ, "te", pattern=PREFIXED), acl(READ, "test"), acl(READ, "*")
    cases = {
        AclFilter(): [prefixed, literal, wildcard],
        AclFilter(name="test"): [literal],
        AclFilter(pattern_type=PatternType.MATCH, name="test"): [prefixed, literal, wildcard],
        AclFilter(pattern_type=PatternType.MATCH, name="t"): [wildcard],
        AclFilter(pattern_type=LITERAL, name="test"): [literal],
        AclFilter(pattern_type=LITERAL): [literal, wildcard],
        AclFilter(pattern_type=PREFIXED, name="test"): [],
        AclFilter(resource_type=GROUP): [],
        AclFilter(principal="User:bob"): [],
        AclFilter(host="*"): [prefixed, literal, wildcard],
        AclFilter(host=HOST): [],
        AclFilter(operation=WRITE): [],
        AclFilter(permission=DENY): [],
    }
    for filter, expected in cases.items():
        assert [each for each in (prefixed, literal, wildcard) if filter.matches(each)] == expected, filter


# Random ACLs over few names, so that many of them meet.

NAMES = ("a", "ab", "abc", "b", "*")
USERS = (ALICE, "User:bob", "User:*")
OPERATIONS = (READ, WRITE, Operation.CREATE, DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, ALL)


def random_acl(random: Random) -> Acl:
    type = random.choice((TOPIC, GROUP, CLUSTER))
    return Acl(
        type,
        LITERAL if type is CLUSTER else random.choice((LITERAL, PREFIXED)),
        CLUSTER_NAME if type is CLUSTER else random.choice(NAMES),
        random.choice(USERS),
        random.choice(("*", HOST, "10.0.0.2")),
        random.choice(OPERATIONS),
        random.choice((ALLOW, ALLOW, DENY)),
    )


def oracle(acls: Iterable[Acl], user: str, host: str, operation: Operation, type: ResourceType, name: str):
    """Look at every ACL."""
    implied = {
        DESCRIBE: {READ, WRITE, Operation.DELETE, Operation.ALTER},
        Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
    }
    covering = [
        each
        for each in acls
        if each.resource_type == type
        and (name.startswith(each.name) if each.pattern_type == PREFIXED else each.name in (name, "*"))
    ]
    permissions = {
        each.permission
        for each in covering
        if each.principal in (user, "User:*")
        and each.host in (host, "*")
        and (
            each.operation in (operation, ALL)
            or (each.permission == ALLOW and each.operation in implied.get(operation, ()))
        )
    }
    return ALLOW in permissions and DENY not in permissions if covering else None


@pytest.mark.parametrize("seed", range(20))
def test_random_acls_are_decided_as_by_the_oracle_after_any_changes(seed: int):
    random = Random(seed)
    rules, acls = RuleSet(), set[Acl]()
    for _ in range(12):
        added = {random_acl(random) for _ in range(random.randrange(6))}
        removed = set(random.sample(sorted(acls), random.randrange(len(acls) + 1)))
        former, former_acls = rules, set(acls)
        rules = rules.changed(removed, added)
        acls = (acls - removed) | added
        assert rules.acls == acls
        assert former.acls == former_acls, "the former rules have changed"
        for _ in range(60):
            question = (
                random.choice(USERS[:2]), random.choice((HOST, "10.0.0.2")), random.choice(OPERATIONS[:-1]),
                *random.choice([(TOPIC, name) for name in NAMES[:-1]] + [(GROUP, "ab"), (CLUSTER, CLUSTER_NAME)]),
            )  # fmt: skip
            assert rules.decide(*question) == oracle(acls, *question), question
            assert former.decide(*question) == oracle(former_acls, *question), question
