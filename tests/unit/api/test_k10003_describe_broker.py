"""DescribeBroker: the process that responds."""

from types import SimpleNamespace
from typing import Any, cast

from kbroker import __version__
from kbroker.metadata.image import WriteHealth
from protocol.apis import ApiKey
from protocol.messages.k10003_describe_broker import DescribeBrokerResponse
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers
from tests.unit.support.memory_disk import settle


@async_test
async def test_a_broker_describes_itself() -> None:
    handlers = await start_handlers()
    handlers.services.started_ms = 1_700_000_000_123
    assert await handlers.request(ApiKey.DESCRIBE_BROKER, 0) == DescribeBrokerResponse(
        broker_id=1, broker_epoch=1, started_ms=1_700_000_000_123, software_version=__version__
    )


@async_test
async def test_brokers_that_cannot_write_are_listed() -> None:
    handlers = await start_handlers()
    await handlers.join(2)
    await handlers.join(3)
    await settle()
    brokers = handlers.member.image.brokers
    brokers[2] = brokers[2]._replace(write_health=WriteHealth.FAILING)
    brokers[3] = brokers[3]._replace(write_health=WriteHealth.PROBATION)
    response = await handlers.request(ApiKey.DESCRIBE_BROKER, 0)
    assert (response.failing_brokers, response.brokers_on_probation) == ([2], [3])


@async_test
async def test_brokers_that_refuse_its_certificate_are_listed() -> None:
    handlers = await start_handlers()
    failed = {3: "TLS handshake failed: certificate has expired"}
    handlers.services.peers = cast(Any, SimpleNamespace(failed_handshakes=lambda: failed))
    (row,) = (await handlers.request(ApiKey.DESCRIBE_BROKER, 0)).failed_handshakes
    assert (row.broker_id, row.reason) == (3, failed[3])


@async_test
async def test_a_fenced_broker_has_no_epoch() -> None:
    handlers = await start_handlers()
    image = handlers.member.image
    image.fenced_brokers[1] = image.brokers.pop(1)
    assert (await handlers.request(ApiKey.DESCRIBE_BROKER, 0)).broker_epoch == -1
