"""Stores the SCRAM users of `kbroker start --add-scram`, without whom nobody could log in to a new cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kbroker.api.context import Identity, RequestContext, complete_response
from kbroker.api.dispatch import load_handler
from kbroker.api.local_requests import DetachedConnection
from kbroker.common import KafkaError
from kbroker.server.authentication.exchanges import new_salt
from protocol.apis import ApiKey
from protocol.errors import ErrorCode
from protocol.messages.k50_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from protocol.scram import salted_password

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kbroker.api.context import Services
    from kbroker.config.broker.security import FirstUser


async def create_first_users(services: Services, users: Sequence[FirstUser]) -> None:
    """Store the users that have no credential for their mechanism yet. Raises KafkaError.

    Later starts with the same option change nothing, so a password that was changed meanwhile stays.
    """
    environment = services.environment
    missing = [user for user in users if services.metadata.scram_credential(user.name, user.mechanism) is None]
    for name, mechanism, password, iterations in missing:
        salt = new_salt(environment.random.randbytes)
        salted = await environment.offload(salted_password, mechanism, password, salt, iterations)
        row = ScramCredentialUpsertion(
            name=name, mechanism=mechanism, iterations=iterations, salt=salt, salted_password=salted
        )
        handler = load_handler(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0)
        own = services.node_id, 0
        identity = Identity(services.config.inter_broker_listener_name, peer_broker=own)
        connection = DetachedConnection("127.0.0.1:0", identity)
        context = RequestContext(connection, handler, 0, 0, None, environment.clock.mono_ns())
        request = AlterUserScramCredentialsRequest(upsertions=[row])
        response = await complete_response(handler.handle, services, context, request)
        for result in response.results:
            if result.error_code:
                raise KafkaError(ErrorCode(result.error_code), f"user {name}: {result.error_message}")
