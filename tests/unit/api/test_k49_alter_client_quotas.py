"""AlterClientQuotas and what quotas do to other requests, beyond the story of tests/compat/wire."""

from typing import Any

from kbroker.metadata.store import znodes
from kbroker.quotas.entities import QuotaEntity
from protocol.apis import ApiKey
from protocol.messages.k19_create_topics import CreatableTopic
from protocol.messages.k20_delete_topics import DeleteTopicState
from protocol.messages.k48_describe_client_quotas import EntityData
from protocol.messages.k49_alter_client_quotas import EntryData, OpData
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers
from tests.unit.support.memory_disk import MemoryDisk, settle

ALICE = QuotaEntity("alice/ü&=%")
BOTH = QuotaEntity("", "client id")
ADDRESS = QuotaEntity(ip="::1")


async def alter(handlers: Handlers, entity: QuotaEntity, **quotas: float | None) -> None:
    row = EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name or None) for kind, name in entity.parts().items()],
        ops=[OpData(key=name, value=value or 0, remove=value is None) for name, value in quotas.items()],
    )
    response = await handlers.request(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[row])
    assert [entry.error_code for entry in response.entries] == [0]
    handlers.services.quotas.update()


@async_test
async def test_quotas_are_kept_across_restarts():
    disk = MemoryDisk()
    handlers = await start_handlers(disk)
    await alter(handlers, ALICE, producer_byte_rate=1024, consumer_byte_rate=5)
    await alter(handlers, ALICE, consumer_byte_rate=None)
    await alter(handlers, BOTH, request_percentage=12.5)
    await alter(handlers, ADDRESS, connection_creation_rate=3)
    await alter(handlers, ADDRESS, connection_creation_rate=None)
    await handlers.store.close()
    stored = {ALICE: {"producer_byte_rate": 1024}, BOTH: {"request_percentage": 12.5}}
    assert (await start_handlers(disk)).member.image.client_quotas == stored


@async_test
async def test_a_cluster_of_a_version_without_quotas_gets_their_directory():
    disk = MemoryDisk()
    handlers = await start_handlers(disk)
    await handlers.store.session().delete(znodes.QUOTAS)
    await handlers.store.close()
    handlers = await start_handlers(disk)
    await alter(handlers, ALICE, producer_byte_rate=1024)
    assert handlers.member.image.client_quotas == {ALICE: {"producer_byte_rate": 1024}}


@async_test
async def test_other_brokers_follow():
    handlers = await start_handlers()
    other = await handlers.join(2)
    await settle()
    await alter(handlers, ALICE, producer_byte_rate=1024)
    await settle()
    assert other.image.client_quotas == {ALICE: {"producer_byte_rate": 1024}}


def test_a_path_has_every_entity():
    for entity in (ALICE, BOTH, ADDRESS, QuotaEntity("", ""), QuotaEntity("..", "."), QuotaEntity(ip="")):
        path = znodes.quotas_path(entity)
        assert znodes.quota_entity(path) == entity
        assert path.count("/") == 3


async def create(handlers: Handlers, version: int, *partitions: int) -> tuple[int, list[int]]:
    topics = [
        CreatableTopic(name=f"t{number}", num_partitions=count, replication_factor=1)
        for number, count in enumerate(partitions)
    ]
    response: Any = await handlers.request(ApiKey.CREATE_TOPICS, version, topics=topics)
    return response.throttle_time_ms, [row.error_code for row in response.topics]


@async_test
async def test_partitions_beyond_the_quota_are_refused():
    handlers = await start_handlers()
    await alter(handlers, QuotaEntity(None, "client"), controller_mutation_rate=1)
    throttle_ms, codes = await create(handlers, 7, 6, 6, 1)
    assert (throttle_ms, codes) == (1000, [0, 0, 89])
    response = await handlers.request(ApiKey.DELETE_TOPICS, 6, topics=[DeleteTopicState(name="t0")])
    assert (response.throttle_time_ms, response.responses[0].error_code) == (1000, 89)
    assert set(handlers.member.image.topics) == {"t0", "t1"}
    # Clients that do not know this error wait instead.
    response = await handlers.request(ApiKey.DELETE_TOPICS, 4, topic_names=["t0"])
    assert (response.throttle_time_ms, response.responses[0].error_code) == (7000, 0)
