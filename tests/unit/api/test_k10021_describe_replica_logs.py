"""DescribeReplicaLogs: only brokers may send it. What it is for is in tests/unit/metadata/recovery/."""

from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k10021_describe_replica_logs import DescribeReplicaLogsRequestTopic
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers


@async_test
async def test_a_client_is_refused():
    handlers = await start_handlers()
    topics = [DescribeReplicaLogsRequestTopic(topic_id=bytes(16), partitions=[0])]
    response = await handlers.request(ApiKey.DESCRIBE_REPLICA_LOGS, 0, peer_broker=None, topics=topics)
    assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
