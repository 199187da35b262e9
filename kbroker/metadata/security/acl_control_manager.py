"""The ACLs of the cluster: what CreateAcls and DeleteAcls change, and how the controller stores it (KIP-140).

A node has up to 512 ACLs. A change of more than a multi is several, so their order matters to the brokers that see only
the first of them: a DENY is created before an ALLOW, and deleted after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from kbroker.authorization.acl import Acl, AclFilter, PermissionType, check_acl
from kbroker.common import KafkaError
from kbroker.coordination import interface
from kbroker.coordination.interface import Create, Delete, Op, batches
from kbroker.metadata.control_manager import ControlManager
from kbroker.metadata.features import ACLS, with_acls
from kbroker.metadata.store import znodes
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

NODE_ACLS = 512
NODE_BYTES = 50_000
# A multi with a node of one such ACL has the size that a coordination service accepts.
MAX_ACL_BYTES = 100_000

AclNodes = Mapping[int, Set[Acl]]


def placed(nodes: AclNodes, new: Iterable[Acl]) -> dict[int, Set[Acl]]:
    """Return the contents of the nodes that get new ACLs, in the order in which they are to be written."""
    changed: dict[int, Set[Acl]] = {}
    number, acls = 0, set(nodes.get(0, ()))
    free_bytes = NODE_BYTES - sum(map(_size, acls))
    for acl in sorted(new, key=_creation_order):
        size = _size(acl)
        while acls and (size > free_bytes or len(acls) >= NODE_ACLS):
            number += 1
            acls = set(nodes.get(number, ()))
            free_bytes = NODE_BYTES - sum(map(_size, acls))
        acls.add(acl)
        changed[number] = acls
        free_bytes -= size
    return changed


def without(nodes: AclNodes, deleted: Set[Acl]) -> dict[int, Set[Acl]]:
    """Return the contents of the nodes that lose ACLs."""
    return {number: acls - deleted for number, acls in nodes.items() if not acls.isdisjoint(deleted)}


def _creation_order(acl: Acl) -> tuple[bool, Acl]:
    return acl.permission is not PermissionType.DENY, acl


def _size(acl: Acl) -> int:
    return len(znodes.encode(acl)) + 1


def _ops(nodes: AclNodes, changed: AclNodes) -> Iterator[Op]:
    for number, acls in changed.items():
        path, data = znodes.acls_path(number), znodes.encode_acls(acls)
        yield Delete(path) if not acls else interface.Set(path, data) if number in nodes else Create(path, data)


class AclControlManager(ControlManager):
    async def create(self, acls: Sequence[Acl]) -> list[KafkaError | None]:
        """Store the valid ACLs. Returns for each why it is invalid. Raises KafkaError for all of them."""
        errors = [check_acl(acl) or _check_size(acl) for acl in paced(acls)]
        valid = {acl for acl, error in zip(acls, errors, strict=True) if error is None}
        async with self._lock:
            await self._writer.prepare()
            new = valid - self._image.rules.acls
            if new:
                self._check_brokers()
                await self._create_directory()
                nodes = self._loader.acls
                await self._writer.commit_all([*self._feature_ops(True), *_ops(nodes, placed(nodes, new))])
        return errors

    async def delete(self, filters: Sequence[AclFilter]) -> list[list[Acl]]:
        """Delete the ACLs that match any of the filters. Returns those of each filter. Raises KafkaError."""
        async with self._lock:
            await self._writer.prepare()
            acls = self._image.rules.acls
        # Others need not wait for the filters.
        matching = [sorted(acl for acl in paced(acls) if each.matches(acl)) for each in filters]
        async with self._lock:
            await self._writer.prepare()
            acls = self._image.rules.acls
            deleted = acls.intersection(acl for each in matching for acl in each)
            if deleted:
                await self._delete(deleted, self._feature_ops(False) if deleted == acls else [])
        return matching

    async def _delete(self, deleted: frozenset[Acl], last: Sequence[Op]) -> None:
        """`last`: operations of the last multi."""
        nodes = self._loader.acls
        ops = [*_ops(nodes, without(nodes, deleted)), *last]
        if len(list(batches(ops))) > 1:
            allowing = frozenset(acl for acl in deleted if acl.permission is PermissionType.ALLOW)
            await self._writer.commit_all(_ops(nodes, without(nodes, allowing)))
            nodes = self._loader.acls
            ops = [*_ops(nodes, without(nodes, deleted)), *last]
        await self._writer.commit_all(ops)

    def _check_brokers(self) -> None:
        """Raise KafkaError if a registered broker has a version that does not enforce ACLs."""
        for broker_id, known in sorted(self._loader.registrations.items()):
            if not any(feature.name == ACLS for feature in known.registration.features):
                message = f"Broker {broker_id} has a version of kbroker without ACLs: upgrade it first"
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)

    def _feature_ops(self, has_acls: bool) -> list[Op]:
        """Return the operation that keeps brokers without ACLs out of the cluster, or lets them in again."""
        features = with_acls(self._image.features, has_acls)
        return (
            []
            if features == self._image.features
            else [interface.Set(znodes.FEATURES, znodes.encode_features(features))]
        )

    async def _create_directory(self) -> None:
        """Create the parent of the nodes, which a version without ACLs did not create."""
        if not self._loader.acls and await self._writer.coordination.exists(znodes.ACLS) is None:
            await self._writer.commit([Create(znodes.ACLS, b"")])


def _check_size(acl: Acl) -> KafkaError | None:
    if _size(acl) <= MAX_ACL_BYTES:
        return None
    return KafkaError(ErrorCode.INVALID_REQUEST, f"The ACL is larger than {MAX_ACL_BYTES} bytes")
