"""DescribeBroker: the process that responds."""

from importlib.metadata import version

from protocol.apis import ApiKey
from protocol.messages.k10003_describe_broker import DescribeBrokerResponse
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers


@async_test
async def test_a_broker_describes_itself() -> None:
    handlers = await start_handlers()
    handlers.services.started_ms = 1_700_000_000_123
    assert await handlers.request(ApiKey.DESCRIBE_BROKER, 0) == DescribeBrokerResponse(
        broker_id=1, broker_epoch=1, started_ms=1_700_000_000_123, software_version=version("kbroker")
    )


@async_test
async def test_a_fenced_broker_has_no_epoch() -> None:
    handlers = await start_handlers()
    image = handlers.member.image
    image.fenced_brokers[1] = image.brokers.pop(1)
    assert (await handlers.request(ApiKey.DESCRIBE_BROKER, 0)).broker_epoch == -1
