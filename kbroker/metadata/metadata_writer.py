"""How the elected controller writes: each change is one multi, under the epoch of its election, with a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.metadata.store import znodes
from kbroker.metadata.store.coordination import (
    BadVersion,
    Check,
    CoordinationError,
    Create,
    NodeExists,
    Op,
    SessionExpired,
    Set,
    Unavailable,
)
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from kbroker.metadata.metadata_loader import MetadataLoader
    from kbroker.metadata.store.coordination import Coordination

# While the service cannot be reached, only one operation in so many seconds waits for it.
AGAIN_S = 1.0


class MetadataWriter:
    """Writes for one who does one thing at a time: `prepare`, decide on the follower's image, `commit`."""

    def __init__(
        self, node_id: int, coordination: Coordination, follower: MetadataLoader, loop: AbstractEventLoop
    ) -> None:
        self._node_id = node_id
        self._coordination = coordination
        self._follower = follower
        self._loop = loop
        # The number of this broker's last election, as it is in the epoch's node.
        self.epoch = 0
        # The version of the epoch's node by which later controllers are told; None while not elected.
        self._epoch_version: int | None = None
        # A change of ours may have been made that the image does not have; when it is time to find out.
        self._uncertain = False
        self._look_at = 0.0

    @property
    def elected(self) -> bool:
        return self._epoch_version is not None

    async def campaign(self) -> bool:
        epoch = await self._coordination.get(znodes.CONTROLLER_EPOCH)
        number = znodes.decode(znodes.CONTROLLER_EPOCH, epoch.data)["epoch"] + 1
        try:
            await self._coordination.multi(
                [
                    Set(znodes.CONTROLLER_EPOCH, znodes.encode({"epoch": number}), epoch.version),
                    Create(znodes.CONTROLLER, znodes.encode({"broker": self._node_id}), ephemeral=True),
                ]
            )
        except (NodeExists, BadVersion):
            return False
        self._epoch_version = epoch.version + 1
        self.epoch = number
        return True

    async def prepare(self) -> None:
        """Before anything is decided: this broker is elected, and its image has all that it has written. Raises
        KafkaError."""
        if self._epoch_version is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
        if not self._uncertain:
            return
        if self._loop.time() < self._look_at:
            raise self._refused(Unavailable("", "the service cannot be reached"))
        try:
            await self._follower.catch_up()
        except CoordinationError as fault:
            self._look_at = self._loop.time() + AGAIN_S
            raise self._refused(fault) from fault
        self._uncertain = False

    async def commit(self, ops: Sequence[Op]) -> None:
        """Writes as one change, then waits until this broker has followed it. Raises KafkaError."""
        try:
            await self.write(ops)
        except CoordinationError as fault:
            raise self._refused(fault) from fault

    async def write(self, ops: Sequence[Op]) -> None:
        """As `commit`; raises CoordinationError."""
        assert self._epoch_version is not None
        changes = self._follower.changes.after(op.path for op in ops)
        await self._coordination.multi(
            [
                Check(znodes.CONTROLLER_EPOCH, self._epoch_version),
                Set(znodes.CHANGES, znodes.encode_changes(changes), self._follower.changes_version),
                *ops,
            ]
        )
        await self._follower.catch_up()

    def _refused(self, fault: CoordinationError) -> KafkaError:
        """What a failure of the coordination service means to clients."""
        if isinstance(fault, SessionExpired) or (
            isinstance(fault, BadVersion) and fault.path == znodes.CONTROLLER_EPOCH
        ):
            self._epoch_version = None
            return KafkaError(ErrorCode.NOT_CONTROLLER, "Another broker is the controller now.")
        if isinstance(fault, Unavailable | BadVersion):
            self._uncertain = True
            # What this means to a client: it may have been done or not, and can be tried again.
            return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"Coordination failed: {fault}")
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Coordination failed: {fault}")
