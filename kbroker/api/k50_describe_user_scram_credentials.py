"""DescribeUserScramCredentials (key 50), version 0: no user has SCRAM credentials, since kbroker has no SASL.

- A request for all users (null or an empty list) returns an empty list.
- Each named user gets RESOURCE_NOT_FOUND, or DUPLICATE_RESOURCE if it is named more than once. The error code of the
  whole response is NONE.
"""

from collections import Counter

from kbroker.api.context import RequestContext, Services
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k50_describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(
    services: Services, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    times_named = Counter(user.name for user in paced(request.users or ()))
    return DescribeUserScramCredentialsResponse(
        results=[_not_found(name) if times == 1 else _duplicate(name) for name, times in paced(times_named.items())]
    )


def _not_found(user: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(
        user=user,
        error_code=ErrorCode.RESOURCE_NOT_FOUND,
        error_message=f"Attempt to describe a user credential that does not exist: {user}",
    )


def _duplicate(user: str) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(
        user=user,
        error_code=ErrorCode.DUPLICATE_RESOURCE,
        error_message=f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
    )
