"""UnregisterBroker: a broker that has gone is removed."""

from kbroker.config.config_def import ConfigResourceType
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers
from tests.unit.support.memory_disk import settle


@async_test
async def test_a_broker_that_has_gone_is_removed():
    handlers = await start_handlers()
    other = await handlers.join(2)
    await other.leave()
    await settle()
    assert set(handlers.member.image.fenced_brokers) == {2}
    response = await handlers.request(ApiKey.UNREGISTER_BROKER, 0, broker_id=2)
    assert (response.error_code, response.error_message) == (0, "")
    assert not handlers.member.image.fenced_brokers
    response = await handlers.request(ApiKey.UNREGISTER_BROKER, 0, broker_id=2)
    assert (response.error_code, response.error_message) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "Broker ID 2 is not currently registered",
    )


@async_test
async def test_a_later_broker_of_the_same_id_is_not_cordoned():
    handlers = await start_handlers()
    other = await handlers.join(2)
    await other.leave()
    await settle()
    configs = {"cordoned.log.dirs": "*", "log.cleaner.threads": "2"}
    await handlers.services.controller.alter_configs(ConfigResourceType.BROKER, "2", configs)
    assert (await handlers.request(ApiKey.UNREGISTER_BROKER, 0, broker_id=2)).error_code == 0
    assert handlers.member.image.overrides(ConfigResourceType.BROKER, "2") == {"log.cleaner.threads": "2"}
