"""DescribeCluster in all versions."""

import pytest

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


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (9, 115)])
@async_test
async def test_other_endpoint_types_are_rejected(endpoint_type: int, code: int):
    response = await (await start_handlers()).request(ApiKey.DESCRIBE_CLUSTER, 2, endpoint_type=endpoint_type)
    assert response.error_code == code
    assert (response.cluster_id, response.controller_id, response.brokers) == ("", -1, [])
