"""DescribeCluster in all versions."""

import pytest

from protocol.apis import ApiKey
from protocol.messages.k60_describe_cluster import DescribeClusterBroker
from tests.unit.support.handlers import run, start_handlers

NOT_ASKED = -(2**31)


@pytest.mark.parametrize("version", range(3))
@pytest.mark.parametrize(("asked", "operations"), [(True, 8096), (False, NOT_ASKED)])
def test_the_cluster(version: int, asked: bool, operations: int):
    async def story():
        handlers = await start_handlers()
        answer = await handlers.request(ApiKey.DESCRIBE_CLUSTER, version, include_cluster_authorized_operations=asked)
        assert (answer.error_code, answer.error_message, answer.endpoint_type) == (0, None, 1)
        assert (answer.cluster_id, answer.controller_id) == (handlers.member.image.cluster_id, 1)
        assert answer.brokers == [DescribeClusterBroker(broker_id=1, host="127.0.0.1", port=9092)]
        assert answer.cluster_authorized_operations == operations

    run(story)


@pytest.mark.parametrize(("endpoint", "code"), [(2, 114), (9, 115)])
def test_other_endpoints_are_not_here(endpoint: int, code: int):
    async def story():
        answer = await (await start_handlers()).request(ApiKey.DESCRIBE_CLUSTER, 2, endpoint_type=endpoint)
        assert answer.error_code == code
        assert (answer.cluster_id, answer.controller_id, answer.brokers) == ("", -1, [])

    run(story)
