"""Requests of the adapter: how operations are written for kazoo, and what its results and errors mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo import exceptions
from kazoo.protocol import serialization
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from kbroker.coordination.interface import (
    BadVersion,
    Check,
    CoordinationError,
    Create,
    Delete,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SessionExpired,
    Set,
    TooLarge,
    Unavailable,
)

# ZooKeeper closes the connection if a request has more bytes (jute.maxbuffer).
MAX_REQUEST_BYTES = 0xFFFFF
# The bytes of a request before its body: its number and its type.
REQUEST_HEADER_BYTES = 8
EPHEMERAL_FLAG = 1


class AccessDenied(CoordinationError):
    """The ACL of the node does not allow the operation."""


_ERRORS: dict[type[Exception], type[CoordinationError]] = {
    exceptions.NodeExistsError: NodeExists,
    exceptions.NoNodeError: NoNode,
    exceptions.BadVersionError: BadVersion,
    exceptions.NotEmptyError: NotEmpty,
    exceptions.SessionExpiredError: SessionExpired,
    exceptions.ConnectionClosedError: SessionExpired,
    exceptions.AuthFailedError: SessionExpired,
    exceptions.ConnectionLoss: Unavailable,
    exceptions.OperationTimeoutError: Unavailable,
    exceptions.RequestTimeoutError: Unavailable,
    exceptions.SessionMovedError: Unavailable,
    exceptions.ThrottledOpError: Unavailable,
    exceptions.NoAuthError: AccessDenied,
}
_DETAILS: dict[type[Exception], str] = {
    exceptions.ConnectionLoss: "the connection to ZooKeeper is lost",
    exceptions.NoAuthError: "(see kbroker.zookeeper.digest)",
    exceptions.InvalidACLError: "ZooKeeper does not accept the ACL of new nodes (see kbroker.zookeeper.digest)",
    exceptions.NotReadOnlyCallError: "the ZooKeeper server is read-only",
    exceptions.QuotaExceededError: "the quota of the ZooKeeper node is exceeded",
}
# The errors of the operations before and after the one that fails a multi.
_NOT_APPLIED = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)


def coordination_error(error: Exception, path: str) -> CoordinationError:
    """Return the interface's error for an error of kazoo."""
    kind = type(error)
    if kind is exceptions.NoChildrenForEphemeralsError:
        return NoNode(path, "the parent is ephemeral")
    name = "" if kind in _ERRORS else f"ZooKeeper failed: {kind.__name__} {error}".strip()
    return _ERRORS.get(kind, CoordinationError)(path, _DETAILS.get(kind, name))


def acl(creator_only: bool) -> Sequence[ACL]:
    """Return the ACL of new nodes: for those that know the digest only, or for everyone."""
    rights: Sequence[ACL] = CREATOR_ALL_ACL if creator_only else OPEN_ACL_UNSAFE
    return rights


def transaction(ops: Sequence[Op], chroot: str, acl: Sequence[ACL]) -> serialization.Transaction:
    """Return the request of a multi. Raises TooLarge."""
    request = serialization.Transaction([_operation(op, chroot, acl) for op in ops])
    size = REQUEST_HEADER_BYTES + len(request.serialize())
    if size > MAX_REQUEST_BYTES:
        raise TooLarge(ops[0].path, f"{len(ops)} operations have {size} bytes, ZooKeeper allows {MAX_REQUEST_BYTES}")
    return request


def _operation(op: Op, chroot: str, acl: Sequence[ACL]) -> Any:
    path = chroot + op.path
    match op:
        case Check(version=version):
            return serialization.CheckVersion(path, version)
        case Create(data=data, ephemeral=ephemeral):
            return serialization.Create(path, data, acl, EPHEMERAL_FLAG if ephemeral else 0)
        case Set(data=data, version=version):
            return serialization.SetData(path, data, version)
        case Delete(version=version):
            return serialization.Delete(path, version)


def transaction_results(results: Sequence[Any], ops: Sequence[Op]) -> Sequence[Any]:
    """Return the results of a multi. Raises the error of the operation that has failed."""
    for op, result in zip(ops, results, strict=True):
        if isinstance(result, Exception) and not isinstance(result, _NOT_APPLIED):
            raise coordination_error(result, op.path)
    return results
