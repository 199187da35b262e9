"""Requests of brokers with many elements: they are decoded at once."""

from kbroker.api.dispatch import Dispatch
from kbroker.server.interbroker.inter_broker_connection import _decode
from protocol.apis import BROKER_LISTENER_APIS, ApiKey
from protocol.limits import MAX_ELEMENTS_AT_ONCE
from protocol.messages.k27_write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from protocol.schema.codec import encode


def test_they_are_decoded_at_once() -> None:
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=list(range(4 * MAX_ELEMENTS_AT_ONCE)))
    request = WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=1, topics=[topic])])
    handler = Dispatch(BROKER_LISTENER_APIS).find(ApiKey.WRITE_TXN_MARKERS, 1)
    assert _decode(handler, memoryview(encode(request, 1)), 0, 1) == request
