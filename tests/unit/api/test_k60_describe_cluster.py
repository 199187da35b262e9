"""DescribeCluster in all versions."""

import pytest

from kbroker.metadata.image import BrokerRegistration
from protocol.apis import ApiKey
from protocol.messages.k60_describe_cluster import DescribeClusterBroker
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers

NOT_REQUESTED = -(2**31)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(("requested", "operations"), [(True, 8096), (False, NOT_REQUESTED)])
@async_test
async def test_the_cluster_in_every_version(version: int, requested: bool, operations: int):
    handlers = await start_handlers()
    response = await handlers.request(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=requested)
    assert (response.error_code, response.error_message, response.endpoint_type) == (0, None, 1)
    assert (response.cluster_id, response.controller_id) == (handlers.member.image.cluster_id, 1)
    assert response.brokers == [DescribeClusterBroker(broker_id=1, host="127.0.0.1", port=9092)]
    assert response.cluster_authorized_operations == operations


@pytest.mark.parametrize(("requested", "ids"), [(True, {1: False, 2: False, 3: True}), (False, {1: False, 2: False})])
@async_test
async def test_fenced_brokers_are_returned_if_requested(requested: bool, ids: dict[int, bool]):
    handlers = await start_handlers()
    handlers.member.image.brokers[2] = BrokerRegistration(2, "host-2", 9092, "rack")
    handlers.member.image.fenced_brokers[3] = BrokerRegistration(3, "host-3", 9093)
    response = await handlers.request(ApiKey.DESCRIBE_CLUSTER, 2, include_fenced_brokers=requested)
    assert {broker.broker_id: broker.is_fenced for broker in response.brokers} == ids


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (9, 115)])
@async_test
async def test_other_endpoint_types_are_rejected(endpoint_type: int, code: int):
    response = await (await start_handlers()).request(ApiKey.DESCRIBE_CLUSTER, 2, endpoint_type=endpoint_type)
    assert response.error_code == code
    assert (response.cluster_id, response.controller_id, response.brokers) == ("", -1, [])
