"""The SCRAM credentials of users (KIP-554).

- DescribeUserScramCredentials (key 50), version 0: their mechanisms and iterations. A request for all users (null or an
  empty list) returns those that have credentials. A named user without credentials gets RESOURCE_NOT_FOUND, and one
  that is named more than once DUPLICATE_RESOURCE. The error code of the whole response is NONE.
- AlterUserScramCredentials (key 51), version 0: set and delete them. Each user can be altered once in a request; the
  response has one result for each. Errors are independent. The client has salted the password, with 4,096 to 16,384
  iterations. Only the keys that follow from it are stored.
"""

from collections import Counter
from collections.abc import Iterable

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.security.scram_control_manager import CredentialChange
from kbroker.runtime.turns import paced
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k50_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

FORWARDED = {ApiKey.ALTER_USER_SCRAM_CREDENTIALS}
# A small request may have a large response.
RUNS_IN_TURNS = {ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS}


def describe(
    services: Services, context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    users = services.metadata.scram_users
    named: Iterable[tuple[str, int]] = Counter(user.name for user in paced(request.users or ())).items()
    if not request.users:
        named = [(name, 1) for name in list(users)]
    return DescribeUserScramCredentialsResponse(results=[_described(services, *each) for each in paced(named)])


def _described(services: Services, user: str, times: int) -> DescribeUserScramCredentialsResult:
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


async def alter(
    services: Services, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    errors = await services.controller.scram.alter(_changes(request))
    return AlterUserScramCredentialsResponse(results=[_altered(user, error) for user, error in errors.items()])


def failed_response(
    context: RequestContext,
    request: AlterUserScramCredentialsRequest | DescribeUserScramCredentialsRequest,
    error: KafkaError,
) -> DescribeUserScramCredentialsResponse | AlterUserScramCredentialsResponse:
    if isinstance(request, DescribeUserScramCredentialsRequest):
        # As in Kafka, without the names.
        unnamed = [
            DescribeUserScramCredentialsResult(error_code=error.code, error_message=error.message)
            for _ in paced(request.users or ())
        ]
        return DescribeUserScramCredentialsResponse(error_code=error.code, error_message=error.message, results=unnamed)
    users = dict.fromkeys(change.user for change in _changes(request))
    return AlterUserScramCredentialsResponse(results=[_altered(user, error) for user in users])


def _changes(request: AlterUserScramCredentialsRequest) -> list[CredentialChange]:
    return [
        *(CredentialChange(row.name, row.mechanism) for row in paced(request.deletions)),
        *(
            CredentialChange(row.name, row.mechanism, row.iterations, bytes(row.salt), bytes(row.salted_password))
            for row in paced(request.upsertions)
        ),
    ]


def _altered(user: str, error: KafkaError | None) -> AlterUserScramCredentialsResult:
    if error is None:
        return AlterUserScramCredentialsResult(user=user, error_code=ErrorCode.NONE, error_message=None)
    return AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=error.message)


HANDLERS = {ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe, ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter}
