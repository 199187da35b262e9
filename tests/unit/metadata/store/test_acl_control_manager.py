"""How the controller stores ACLs, and what brokers see while it does."""

import asyncio
from random import Random

import pytest

from kbroker.authorization.acl import Acl, AclFilter, Operation, PatternType, PermissionType, ResourceType
from kbroker.common import KafkaError
from kbroker.coordination.embedded import EmbeddedStore
from kbroker.metadata import acl_control_manager as module
from kbroker.metadata.security.acl_control_manager import NODE_ACLS, NODE_BYTES, placed, without
from kbroker.metadata.features import ACLS, OWN_FEATURES
from kbroker.metadata.image import BrokerRegistration
from kbroker.metadata.store import znodes
from protocol.errors import ErrorCode
from tests.unit.support.async_test import async_test
from tests.unit.support.memory_disk import MemoryDisk, make_environment, settle
from tests.unit.support.metadata_cluster import Cluster

ALLOW, DENY = PermissionType.ALLOW, PermissionType.DENY
ALL = AclFilter()


def acl(name: str, permission: PermissionType = ALLOW, principal: str = "User:a") -> Acl:
    return Acl(ResourceType.TOPIC, PatternType.LITERAL, name, principal, "*", Operation.READ, permission)


async def cluster_of(*broker_ids: int, disk: MemoryDisk | None = None) -> Cluster:
    store = await EmbeddedStore.open(make_environment(disk), "/data/coordination")
    cluster = Cluster(store)
    await cluster.start(*broker_ids)
    return cluster


def rules_of(cluster: Cluster) -> set[Acl]:
    """Return the ACLs, which are the same on all brokers."""
    first, *others = (broker.image.rules.acls for broker in cluster.brokers.values())
    assert all(other == first for other in others)
    return set(first)


async def create(cluster: Cluster, *acls: Acl) -> list[KafkaError | None]:
    errors = await cluster.elected.acls.create(acls)
    await settle()
    return errors


async def delete(cluster: Cluster, *filters: AclFilter) -> list[list[Acl]]:
    deleted = await cluster.elected.acls.delete(filters)
    await settle()
    return deleted


@async_test
async def test_all_brokers_have_created_acls_and_lose_deleted_ones() -> None:
    cluster = await cluster_of(1, 2)
    a, b, denied = acl("a"), acl("b"), acl("b", DENY)
    assert await create(cluster, a, b, a) == [None, None, None]
    assert await create(cluster, a, denied) == [None, None]
    assert rules_of(cluster) == {a, b, denied}
    assert await delete(cluster, AclFilter(name="b"), AclFilter(permission=DENY), AclFilter(name="x")) == [
        [denied, b],
        [denied],
        [],
    ]
    assert rules_of(cluster) == {a}
    await cluster.start(3)
    assert rules_of(cluster) == {a}, "a broker that joins loads them"


@async_test
async def test_an_invalid_acl_does_not_prevent_others() -> None:
    cluster = await cluster_of(1)
    (first, second, third) = await create(cluster, acl(""), acl("a"), acl("\0" * 30_000))
    assert first is not None
    assert first.code == ErrorCode.INVALID_REQUEST
    assert second is None
    assert third is not None
    assert third.message == "The ACL is larger than 100000 bytes"
    assert rules_of(cluster) == {acl("a")}


@async_test
async def test_acls_survive_a_restart_and_another_controller() -> None:
    disk = MemoryDisk()
    cluster = await cluster_of(1, 2, disk=disk)
    acls = [acl(f"t{number}") for number in range(1200)]
    await create(cluster, *acls)
    assert len(cluster.controller.loader.acls) == 3
    await cluster.stop(1)
    await create(cluster, acl("more"))
    assert rules_of(cluster) == {*acls, acl("more")}
    await cluster.stop(2)
    await cluster.start(2)
    assert rules_of(cluster) == {*acls, acl("more")}
    assert len(cluster.controller.loader.acls) == 3


@async_test
async def test_nodes_have_a_bounded_size() -> None:
    many = placed({}, [acl(f"t{number}") for number in range(NODE_ACLS + 1)])
    assert [len(acls) for acls in many.values()] == [NODE_ACLS, 1]
    large = [acl(f"{number}" + "x" * 20_000) for number in range(5)]
    assert [len(acls) for acls in placed({}, large).values()] == [2, 2, 1]
    assert all(len(znodes.encode_acls(acls)) <= NODE_BYTES for acls in placed({}, large).values())
    assert [*placed({}, [acl("x" * 80_000), acl("y")])] == [0, 1], "one that is larger than a node has its own"
    assert placed({0: {acl("a")}, 2: {acl("b")}}, [acl("c")]) == {0: {acl("a"), acl("c")}}
    full = {0: {acl(f"t{number}") for number in range(NODE_ACLS)}}
    assert placed(full, [acl("c")]) == {1: {acl("c")}}
    assert without({0: {acl("a"), acl("b")}, 1: {acl("c")}}, {acl("b")}) == {0: {acl("a")}}


@pytest.mark.parametrize("seed", range(3))
@async_test
async def test_a_large_change_never_allows_more_than_before_and_after(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each multi has one node: brokers see every step. Each name has an ALLOW and a DENY, so nothing is allowed."""
    monkeypatch.setattr(module, "NODE_ACLS", 3)
    monkeypatch.setattr("kbroker.coordination.interface.MULTI_BYTES", 1)
    random = Random(seed)
    cluster = await cluster_of(1, 2)
    seen: list[bool] = []

    def watch(*_: object) -> None:
        rules = cluster.brokers[2].image.rules
        allowed = [
            rules.decide("User:a", "h", Operation.READ, ResourceType.TOPIC, f"t{number}") for number in range(10)
        ]
        seen.append(True in allowed)

    cluster.brokers[2].add_roles_listener(watch)
    acls = [acl(f"t{number}", permission) for number in range(10) for permission in (ALLOW, DENY)]
    random.shuffle(acls)
    await create(cluster, *acls)
    steps = len(seen)
    assert steps >= 7
    assert rules_of(cluster) == set(acls)
    await delete(cluster, ALL)
    assert len(seen) > steps + 7
    assert not any(seen)
    assert rules_of(cluster) == set()


@async_test
async def test_brokers_without_acls_are_kept_out_as_long_as_there_are_any() -> None:
    cluster = await cluster_of(1)
    former = tuple(feature for feature in OWN_FEATURES if feature.name != ACLS)
    assert ACLS not in cluster.controller.image.features.levels
    await create(cluster, acl("a"))
    assert cluster.controller.image.features.level(ACLS) == 1
    await create(cluster, acl("b"))
    await delete(cluster, AclFilter(name="a"))
    assert cluster.controller.image.features.level(ACLS) == 1
    await delete(cluster, ALL)
    assert ACLS not in cluster.controller.image.features.levels
    registrations = cluster.controller.loader.registrations
    known = registrations[1]
    registrations[2] = known._replace(registration=BrokerRegistration(2, "h", 2, features=former))
    with pytest.raises(KafkaError) as raised:
        await create(cluster, acl("a"))
    assert raised.value.code == ErrorCode.UNSUPPORTED_VERSION
    assert raised.value.message == "Broker 2 has a version of kbroker without ACLs: upgrade it first"
    assert rules_of(cluster) == set()


@async_test
async def test_concurrent_changes_lose_nothing() -> None:
    cluster = await cluster_of(1, 2)
    await create(cluster, *(acl(f"old{number}") for number in range(20)))
    manager = cluster.elected.acls
    await asyncio.gather(
        *(manager.create([acl(f"new{number}")]) for number in range(20)),
        *(manager.delete([AclFilter(name=f"old{number}")]) for number in range(20)),
    )
    await settle()
    assert rules_of(cluster) == {acl(f"new{number}") for number in range(20)}


@async_test
async def test_a_node_of_another_program_is_no_acl() -> None:
    path = znodes.acls_path(0)
    for data in (b"{", b"[[2, 3]]", b'[[2, 3, "t", "User:a", "*", 99, 3]]'):
        with pytest.raises(znodes.InvalidNodeData, match=path):
            znodes.decode_acls(path, data)
