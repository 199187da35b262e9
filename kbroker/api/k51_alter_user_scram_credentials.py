"""AlterUserScramCredentials (key 51), version 0: set and delete the SCRAM credentials of users (KIP-554).

- Each user can be altered once in a request; the response has one result for each. Errors are independent.
- The client has salted the password, with 4,096 to 16,384 iterations. Only the keys that follow from it are stored.
"""

from kbroker.api.context import RequestContext, Services
from kbroker.common import KafkaError
from kbroker.metadata.security.scram_control_manager import CredentialChange
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode
from protocol.messages.k51_alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)

FORWARDED = True


async def handle(
    services: Services, context: RequestContext, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    errors = await services.controller.scram.alter(_changes(request))
    return AlterUserScramCredentialsResponse(results=[_result(user, error) for user, error in errors.items()])


def failed_response(
    context: RequestContext, request: AlterUserScramCredentialsRequest, error: KafkaError
) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys(change.user for change in _changes(request))
    return AlterUserScramCredentialsResponse(results=[_result(user, error) for user in users])


def _changes(request: AlterUserScramCredentialsRequest) -> list[CredentialChange]:
    return [
        *(CredentialChange(row.name, row.mechanism) for row in paced(request.deletions)),
        *(
            CredentialChange(row.name, row.mechanism, row.iterations, bytes(row.salt), bytes(row.salted_password))
            for row in paced(request.upsertions)
        ),
    ]


def _result(user: str, error: KafkaError | None) -> AlterUserScramCredentialsResult:
    if error is None:
        return AlterUserScramCredentialsResult(user=user, error_code=ErrorCode.NONE, error_message=None)
    return AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=error.message)
