"""Requests of brokers with many elements: they are decoded at once."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from kbroker.api.context import Identity
from kbroker.api.dispatch import Dispatch
from kbroker.interbroker.frame_protocol import PeerFrameBuffers
from kbroker.server.interbroker.inter_broker_connection import InterBrokerConnection
from protocol.apis import BROKER_LISTENER_APIS, ApiKey
from protocol.framing import encode_request_header
from protocol.limits import MAX_ELEMENTS_AT_ONCE
from protocol.messages.k27_write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from protocol.schema.codec import encode
from tests.unit.support.server_connection import DispatchTo


def test_they_are_decoded_at_once() -> None:
    topic = WritableTxnMarkerTopic(name="t", partition_indexes=list(range(4 * MAX_ELEMENTS_AT_ONCE)))
    request = WriteTxnMarkersRequest(markers=[WritableTxnMarker(producer_id=1, topics=[topic])])
    received: list[object] = []
    handler = replace(
        Dispatch(BROKER_LISTENER_APIS)[ApiKey.WRITE_TXN_MARKERS, 1],
        handle=lambda services, context, request: received.append(request),
    )
    server = SimpleNamespace(
        buffers=PeerFrameBuffers(), dispatch=DispatchTo(lambda key, version: handler), errors=None,
        max_request_bytes=1 << 20, mono_ns=lambda: 0, services=None,
    )  # fmt: skip
    connection = InterBrokerConnection(cast(Any, server), "peer", Identity("BROKERS"), lambda closed: None)
    header = encode_request_header(ApiKey.WRITE_TXN_MARKERS, 1, 1, None)
    connection.on_frame(memoryview(header + encode(request, 1)), True)
    assert received == [request]
