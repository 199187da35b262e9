"""kbroker's own requests, as kafka-python encodes and decodes them."""

import pytest
from kafka.errors import KafkaProtocolError
from kafka.protocol.parser import KafkaProtocol

from kbroker.cli.cluster.plans.broker_message import BrokerRequest
from protocol.framing import decode_request_header, encode_frame, encode_response_header
from protocol.messages.k10002_cancel_reassignment_plan import (
    CancelReassignmentPlanRequest,
    CancelReassignmentPlanResponse,
)
from protocol.schema.codec import decode, encode


def sent_by(parser: KafkaProtocol) -> int:
    """Send a request, check its bytes, and return its correlation id."""
    parser.send_request(BrokerRequest(CancelReassignmentPlanRequest(plan_id=7), CancelReassignmentPlanResponse))
    frame = parser.send_bytes()[4:]
    header = decode_request_header(frame)
    assert (header.api_key, header.version, header.client_id) == (10002, 0, "cli")
    assert decode(CancelReassignmentPlanRequest, frame, 0, header.body_pos).plan_id == 7
    return header.correlation_id


def test_a_request_and_its_response() -> None:
    parser = KafkaProtocol(client_id="cli")
    correlation_id = sent_by(parser)
    response = CancelReassignmentPlanResponse(error_code=42, error_message="no plan runs")
    frame = encode_frame(encode_response_header(10002, 0, correlation_id), encode(response, 0))
    assert parser.receive_bytes(frame[:9]) == []
    assert parser.receive_bytes(frame[9:]) == [(correlation_id, response)]


def test_a_response_that_cannot_be_decoded() -> None:
    parser = KafkaProtocol(client_id="cli")
    header = encode_response_header(10002, 0, sent_by(parser))
    with pytest.raises(KafkaProtocolError):
        parser.receive_bytes(encode_frame(header, b"\0"))
