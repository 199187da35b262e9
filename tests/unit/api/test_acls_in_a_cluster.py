"""ACLs of three brokers: any of them accepts changes, and all of them decide by the same rules."""

from typing import Any

import pytest

from kbroker.authorization.acl import Acl, Operation, PatternType, PermissionType, ResourceType
from kbroker.common import ANONYMOUS, KafkaError, Principal
from kbroker.config.definitions.security import STANDARD_AUTHORIZER
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages import message_classes
from protocol.messages.k29_acls import AclCreation, CreateAclsRequest, DeleteAclsFilter, DeleteAclsRequest
from tests.unit.support.acl_recording import ACL, ALL, CREATION, FILTER
from tests.unit.support.simulated_cluster import SimulatedCluster
from tests.unit.support.simulated_hosts import simulated

SEEDS = range(2)
NEW = AclCreation(**dict(zip(CREATION, ACL, strict=True)))
CREATE = CreateAclsRequest(creations=[NEW])
DELETE_ALL = DeleteAclsRequest(filters=[DeleteAclsFilter(**dict(zip(FILTER, ALL, strict=True)))])
STORED = Acl(
    ResourceType.TOPIC, PatternType.LITERAL, "t", "User:a", "*", Operation.READ, PermissionType.ALLOW
)  # fmt: skip


class AuthorizingCluster(SimulatedCluster):
    super_user = str(ANONYMOUS)

    def configs(self, node_id: int) -> dict[str, str]:
        authorizer = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": self.super_user}
        return super().configs(node_id) | authorizer

    @property
    def others(self) -> list[int]:
        return [node_id for node_id in self.machines if node_id != self.controller]

    def acls(self, node_id: int) -> set[Acl]:
        """Return the rules by which a broker decides."""
        authorizer = self.broker(node_id).services.authorizer
        assert authorizer is not None
        assert authorizer.rules is self.broker(node_id).services.metadata.rules
        return set(authorizer.rules.acls)

    async def ask(self, node_id: int, request: Any) -> Any:
        key = ApiKey.CREATE_ACLS if isinstance(request, CreateAclsRequest) else ApiKey.DELETE_ACLS
        return await self.client(node_id, lambda client: client.request(request, 3, message_classes(key)[1]))


@simulated(AuthorizingCluster, SEEDS)
async def test_all_brokers_have_a_change_when_its_response_arrives(s: AuthorizingCluster) -> None:
    for node_id in s.machines:
        response = await s.ask(node_id, CREATE)
        assert [result.error_code for result in response.results] == [0]
        assert [s.acls(each) for each in s.machines] == [{STORED}] * 3
        response = await s.ask(node_id, DELETE_ALL)
        assert [len(result.matching_acls) for result in response.filter_results] == [1]
        assert [s.acls(each) for each in s.machines] == [set()] * 3


@simulated(AuthorizingCluster, SEEDS)
async def test_a_broker_without_the_change_is_waited_for_a_second(s: AuthorizingCluster) -> None:
    cut, node_id = s.others
    s.service.cut(f"b{cut}")
    began = s.loop.time()
    response = await s.ask(node_id, CREATE)
    assert [result.error_code for result in response.results] == [0]
    assert 1 <= s.loop.time() - began < 1.5
    assert [s.acls(each) for each in (cut, node_id, s.controller)] == [set(), {STORED}, {STORED}]
    s.service.heal(f"b{cut}")
    await s.until(lambda: s.acls(cut) == {STORED}, 30)


@simulated(AuthorizingCluster, SEEDS)
async def test_a_malformed_request_does_not_reach_the_controller(s: AuthorizingCluster) -> None:
    malformed = CreateAclsRequest(creations=[AclCreation(**dict(zip(CREATION, [0, *ACL[1:]], strict=True)))])
    peers: Any = s.broker(s.others[0]).services.peers
    await s.ask(s.others[0], CREATE)
    connections = [link.connection for link in peers._links.values()]
    with pytest.raises(ConnectionError):
        await s.ask(s.others[0], malformed)
    assert [link.connection for link in peers._links.values()] == connections
    assert all(connection.is_open for connection in connections)


class RootOnly(AuthorizingCluster):
    super_user = "User:root"


@simulated(RootOnly, SEEDS)
async def test_brokers_create_internal_topics_themselves(s: RootOnly) -> None:
    """Clients may do nothing in this cluster."""
    node_id = s.others[0]
    creation = s.broker(node_id).services.auto_topic_creation
    topic = await s.machines[node_id].loop.run(creation.ensure_internal_topic("__consumer_offsets"))
    assert topic.internal


@simulated(RootOnly, SEEDS)
async def test_the_controller_decides_about_what_another_broker_forwards(s: RootOnly) -> None:
    """Also about topics that a client's request needs: the broker that creates them has checked it by its own rules."""
    node_id = s.others[0]
    response = await s.ask(node_id, CREATE)
    assert [result.error_code for result in response.results] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    creation, machine = s.broker(node_id).services.auto_topic_creation, s.machines[node_id]
    with pytest.raises(KafkaError) as raised:
        await machine.loop.run(creation.auto_create_topic("t", (ANONYMOUS, "10.0.0.7")))
    assert raised.value.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = await machine.loop.run(creation.auto_create_topic("t", (Principal("User", "root"), "10.0.0.7")))
    assert topic.name == "t"
