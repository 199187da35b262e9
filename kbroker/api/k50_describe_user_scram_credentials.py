"""DescribeUserScramCredentials (key 50), version 0: the mechanisms and iterations of users' credentials (KIP-554).

- A request for all users (null or an empty list) returns those that have credentials.
- A named user without credentials gets RESOURCE_NOT_FOUND, and one that is named more than once DUPLICATE_RESOURCE. The
  error code of the whole response is NONE.
"""

from collections import Counter
from collections.abc import Iterable

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k50_describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

# A small request may have a large response.
RUNS_IN_TURNS = True


def handle(
    services: Services, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    users = services.metadata.scram_users
    named: Iterable[tuple[str, int]] = Counter(user.name for user in paced(request.users or ())).items()
    if not request.users:
        named = [(name, 1) for name in list(users)]
    return DescribeUserScramCredentialsResponse(results=[_result(services, *each) for each in paced(named)])


def failed_response(
    context: RequestContext, request: DescribeUserScramCredentialsRequest, error: KafkaError
) -> DescribeUserScramCredentialsResponse:
    # As in Kafka, without the names.
    results = [
        DescribeUserScramCredentialsResult(error_code=error.code, error_message=error.message)
        for _ in paced(request.users or ())
    ]
    return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.message, results=results)


def _result(services: Services, user: str, times: int) -> DescribeUserScramCredentialsResult:
    if times > 1:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.DUPLICATE_RESOURCE,
            error_message=f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}",
        )
    credentials = services.metadata.scram_users.get(user)
    if credentials is None:
        return DescribeUserScramCredentialsResult(
            user=user,
            error_code=ErrorCode.RESOURCE_NOT_FOUND,
            error_message=f"Attempt to describe a user credential that does not exist: {user}",
        )
    infos = [CredentialInfo(mechanism=each, iterations=value.iterations) for each, value in credentials.items()]
    return DescribeUserScramCredentialsResult(user=user, credential_infos=infos)
