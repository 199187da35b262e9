"""ForwardRecords: only brokers may send it. What it does is in tests/unit/queues/closing/."""

from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from tests.unit.support.async_test import async_test
from tests.unit.support.handlers import start_handlers


@async_test
async def test_refused_requests():
    handlers = await start_handlers()
    for peer, code in ((None, ErrorCode.CLUSTER_AUTHORIZATION_FAILED), ((2, 1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)):
        response = await handlers.request(
            ApiKey.FORWARD_RECORDS, 0, peer_broker=peer, topic_id=bytes(16), partition_index=0, records=b""
        )
        assert response.error_code == code
