"""The errors that are reported of a response: code, message, and what each error is about."""

from random import Random
from typing import Any

import pytest

from kbroker.api.response_errors import describe_error, error_check, error_fields, errors_in
from protocol.errors import ErrorCode
from protocol.messages.k29_acls import (
    AclCreationResult,
    CreateAclsResponse,
    DeleteAclsFilterResult,
    DeleteAclsResponse,
    DescribeAclsResponse,
)
from protocol.messages.k45_partition_reassignments import ListPartitionReassignmentsResponse
from protocol.messages.k48_describe_client_quotas import DescribeClientQuotasResponse
from protocol.messages.k50_scram_credentials import (
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from protocol.messages.k55_describe_quorum import DescribeQuorumResponse, PartitionData, TopicData
from protocol.schema.message import Message, message_info
from tests.unit.support.random_messages import all_messages, random_message

DISABLED = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": "none"}
NOT_FOUND = {"error_code": ErrorCode.RESOURCE_NOT_FOUND, "error_message": "no user"}
UNKNOWN = {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "error_message": "no"}


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        (DescribeAclsResponse(**DISABLED), [(54, "none", {})]),
        (CreateAclsResponse(results=[AclCreationResult(**DISABLED), AclCreationResult()]), [(54, "none", {})]),
        (DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(**DISABLED)]), [(54, "none", {})]),
        (ListPartitionReassignmentsResponse(), []),
        (DescribeClientQuotasResponse(), []),
        (
            DescribeClientQuotasResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="no", entries=None),
            [(42, "no", {})],
        ),
        (
            DescribeUserScramCredentialsResponse(results=[DescribeUserScramCredentialsResult(user="u", **NOT_FOUND)]),
            [(91, "no user", {"user": "u"})],
        ),
        (
            DescribeQuorumResponse(
                topics=[TopicData(topic_name="t", partitions=[PartitionData(partition_index=2, **UNKNOWN)])]
            ),
            [(3, "no", {"topic": "t", "partition": 2})],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_errors_with_their_subjects(response: Any, expected: list[tuple[int, str, dict[str, object]]]):
    fields = error_fields(type(response))
    assert fields is not None
    assert [(code, *describe_error(None, path)) for code, path in errors_in(fields, response)] == expected


@pytest.mark.parametrize("cls", [cls for cls in all_messages() if message_info(cls).kind == "response"])
def test_the_check_finds_an_error_where_there_is_one(cls: type[Message]):
    fields = error_fields(cls)
    if fields is None:
        return
    has_errors = error_check(fields, cls.__name__)
    for seed in range(30):
        response = random_message(cls, message_info(cls).max_version, Random(seed))
        assert has_errors(response) is any(True for _ in errors_in(fields, response))
    assert not has_errors(cls())
