"""ListConfigResources, against recorded responses of Apache Kafka 4.4.0."""

from protocol.apis import ApiKey
from tests.unit.support.async_test import async_test
from tests.unit.support.config_recording import replay
from tests.unit.support.handlers import start_handlers


@async_test
async def test_the_responses_are_those_of_kafka():
    steps, differences = await replay("list")
    assert steps == 10
    assert differences == []


@async_test
async def test_brokers_without_overrides_are_listed():
    response = await (await start_handlers()).request(ApiKey.LIST_CONFIG_RESOURCES, 1)
    assert [(resource.resource_type, resource.resource_name) for resource in response.config_resources] == [
        (8, "1"),
        (4, "1"),
    ]
