"""CreateTopics beyond the story of tests/compat/wire. Its errors are in tests/unit/metadata/topics/."""

from typing import Any

from protocol.apis import ApiKey
from protocol.messages.k19_create_topics import CreatableTopic
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import Handlers, start_handlers


async def create(handlers: Handlers) -> Any:
    topic = CreatableTopic(name="a", num_partitions=-1, replication_factor=-1)
    (result,) = (await handlers.request(ApiKey.CREATE_TOPICS, 7, topics=[topic])).topics
    return result


@async_test
async def test_the_defaults_are_the_brokers():
    result = await create(await start_handlers())
    assert (result.num_partitions, result.replication_factor) == (4, 1)


@async_test
async def test_a_broker_that_is_not_the_controller_rejects_requests():
    handlers = await start_handlers()
    await handlers.member.leave()
    assert (await create(handlers)).error_code == 41
