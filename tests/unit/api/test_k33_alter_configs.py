"""AlterConfigs as Apache Kafka 4.3.1 answers it."""

import pytest

from kbroker.metadata.topics.create_topics import NewTopic
from protocol.apis import APIS, ApiKey
from protocol.messages.k33_alter_configs import AlterableConfig, AlterConfigsResource
from tests.unit.support.config_recording import play
from tests.unit.support.handlers import run, start_handlers

ALL_VERSIONS = range(APIS[ApiKey.ALTER_CONFIGS].min_version, APIS[ApiKey.ALTER_CONFIGS].max_version + 1)


def topic(name: str, **configs: str) -> AlterConfigsResource:
    named = [AlterableConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()]
    return AlterConfigsResource(resource_type=2, resource_name=name, configs=named)


def test_every_step_of_kafkas_story_is_answered_as_kafka_does():
    async def story():
        steps, differences = await play("replace")
        assert steps > 15
        assert differences == []

    run(story)


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_what_is_not_named_is_reset(version: int):
    async def story():
        handlers = await start_handlers()
        await handlers.member.controller.create_topics([NewTopic("t", 1, configs=[("segment.ms", "5000")])], False)
        answer = await handlers.request(ApiKey.ALTER_CONFIGS, version, resources=[topic("t", retention_ms="7000")])
        (response,) = answer.responses
        assert (response.error_code, response.error_message) == (0, None)
        assert (response.resource_type, response.resource_name) == (2, "t")
        assert handlers.member.image.overrides(2, "t") == {"retention.ms": "7000"}

    run(story)


def test_a_resource_named_twice_is_refused_both_times():
    async def story():
        handlers = await start_handlers()
        await handlers.member.controller.create_topics([NewTopic("t", 1)], False)
        twice = [topic("t", segment_ms="5000"), topic("t", segment_ms="6000")]
        answer = await handlers.request(ApiKey.ALTER_CONFIGS, 2, resources=twice)
        refusal = (42, "Each resource must appear at most once.")
        assert [(one.error_code, one.error_message) for one in answer.responses] == [refusal, refusal]
        assert handlers.member.image.overrides(2, "t") == {}

    run(story)
