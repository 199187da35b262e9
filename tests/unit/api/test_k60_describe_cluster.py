"""DescribeCluster beyond the story of tests/compat/wire, which has one broker."""

import pytest

from kbroker.metadata.image import BrokerRegistration
from protocol.apis import ApiKey
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers


@pytest.mark.parametrize(("requested", "ids"), [(True, {1: False, 2: False, 3: True}), (False, {1: False, 2: False})])
@async_test
async def test_fenced_brokers_are_returned_if_requested(requested: bool, ids: dict[int, bool]):
    handlers = await start_handlers()
    handlers.member.image.brokers[2] = BrokerRegistration(2, "host-2", 9092, "rack")
    handlers.member.image.fenced_brokers[3] = BrokerRegistration(3, "host-3", 9093)
    response = await handlers.request(ApiKey.DESCRIBE_CLUSTER, 2, include_fenced_brokers=requested)
    assert {broker.broker_id: broker.is_fenced for broker in response.brokers} == ids
