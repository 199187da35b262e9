"""The SCRAM credentials of users: what AlterUserScramCredentials changes, and how the controller stores it (KIP-554).

A user has one node, with a credential for each mechanism. Errors and their messages are Kafka's. Each user can be
altered once in a request. An error refuses the changes of its user only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kbroker.common import KafkaError
from kbroker.coordination.interface import Create, Delete, Op, Set
from kbroker.metadata.control_manager import ControlManager
from kbroker.metadata.store import znodes
from protocol.errors import ErrorCode
from protocol.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramCredential, ScramMechanism, credential

UserCredentials = Mapping[ScramMechanism, ScramCredential]
_SCRAM_MECHANISMS = frozenset(ScramMechanism)


class CredentialChange(NamedTuple):
    """A change of one user. `iterations`, `salt`, `salted_password`: None for a deletion."""

    user: str
    mechanism: int
    iterations: int | None = None
    salt: bytes = b""
    salted_password: bytes = b""


def check_changes(
    changes: Sequence[CredentialChange], users: Mapping[str, UserCredentials]
) -> dict[str, CredentialChange | KafkaError]:
    """Return by user the change that is valid, or its error."""
    checked: dict[str, CredentialChange | KafkaError] = {}
    for change in changes:
        former = checked.get(change.user)
        if isinstance(former, KafkaError):
            continue
        error = _error(change, users.get(change.user, {}))
        if former is not None:
            message = "A user credential cannot be altered twice in the same request"
            error = KafkaError(ErrorCode.DUPLICATE_RESOURCE, message)
        checked[change.user] = change if error is None else error
    return checked


def _error(change: CredentialChange, current: UserCredentials) -> KafkaError | None:
    if not change.user:
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if change.mechanism not in _SCRAM_MECHANISMS:
        return KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if change.iterations is None:
        if change.mechanism in current:
            return None
        message = "Attempt to delete a user credential that does not exist"
        return KafkaError(ErrorCode.RESOURCE_NOT_FOUND, message)
    if not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
        message = "Too few iterations" if change.iterations < MIN_ITERATIONS else "Too many iterations"
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
    if not change.salted_password:
        # Kafka accepts other sizes than the mechanism's, too, and fails with an empty one.
        return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salted password must not be empty")
    return None


def altered(change: CredentialChange, current: UserCredentials) -> UserCredentials:
    """Return the credentials of a user after a valid change."""
    mechanism = ScramMechanism(change.mechanism)
    others = {each: value for each, value in current.items() if each is not mechanism}
    if change.iterations is None:
        return others
    return {**others, mechanism: credential(mechanism, change.salted_password, change.salt, change.iterations)}


class ScramControlManager(ControlManager):
    async def alter(self, changes: Sequence[CredentialChange]) -> dict[str, KafkaError | None]:
        """Store the valid changes. Returns by user its error, None without one. Raises KafkaError for all of them."""
        async with self._lock:
            await self._writer.prepare()
            users = self._image.scram_users
            checked = check_changes(changes, users)
            valid = [change for change in checked.values() if isinstance(change, CredentialChange)]
            if valid:
                if not users:
                    await self._ensure_directory(znodes.USERS)
                await self._writer.commit_all([_op(users, change) for change in valid])
        await self._loader.wait_if_alone()
        return {user: change if isinstance(change, KafkaError) else None for user, change in checked.items()}


def _op(users: Mapping[str, UserCredentials], change: CredentialChange) -> Op:
    path, current = znodes.user_path(change.user), users.get(change.user, {})
    new = altered(change, current)
    data = znodes.encode_user(new)
    return Delete(path) if not new else Set(path, data) if current else Create(path, data)
