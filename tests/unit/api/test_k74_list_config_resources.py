"""ListConfigResources as Apache Kafka 4.3.1 answers it."""

from protocol.apis import ApiKey
from tests.unit.support.config_recording import play
from tests.unit.support.handlers import run, start_handlers


def test_every_step_of_kafkas_story_is_answered_as_kafka_does():
    async def story():
        steps, differences = await play("list")
        assert steps == 10
        assert differences == []

    run(story)


def test_brokers_are_listed_with_nothing_set():
    async def story():
        answer = await (await start_handlers()).request(ApiKey.LIST_CONFIG_RESOURCES, 1)
        assert [(one.resource_type, one.resource_name) for one in answer.config_resources] == [(8, "1"), (4, "1")]

    run(story)
