"""A group of the newer protocols whose members commit offsets: which commits and fetches it accepts.

An epoch before the member's is accepted for partitions that it had already (KIP-1251).
"""

from abc import abstractmethod
from collections.abc import Sequence

from kbroker.common import KafkaError
from kbroker.coordinator.group.group import Committer
from kbroker.coordinator.group.modern.modern_group import M, ModernGroup, T
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.runtime.turns import paced
from protocol.errors import ErrorCode

# The first version of OffsetCommit that has member epochs.
MEMBER_EPOCH_VERSION = 9


class CommittingGroup(ModernGroup[M, T]):
    __slots__ = ()

    def stale_error(self, member: M) -> ErrorCode:
        """Return the error for an epoch that is not the member's; ILLEGAL_GENERATION for a classic member."""
        return ErrorCode.STALE_MEMBER_EPOCH

    @abstractmethod
    def assignment_epoch_of(self, member: M, record: OffsetRecord) -> int | None:
        """Return the epoch in which the member was assigned a partition that it still has, else None."""

    def validate_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], now_ms: int) -> None:
        if committer.generation < 0 and not self.members:
            return
        member = self.existing_member(committer.member_id)
        stale = self.stale_error(member)
        if stale is ErrorCode.STALE_MEMBER_EPOCH and committer.version < MEMBER_EPOCH_VERSION:
            message = (
                f"OffsetCommit version 9 or above must be used by members using the {self.type_name} group protocol"
            )
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
        self._validate_epoch_of_commit(member, committer.generation, offsets, stale)

    def validate_transactional_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord]) -> None:
        member_id, instance_id, epoch, _ = committer
        if epoch < 0 and (not self.members or (not member_id and instance_id is None)):
            return
        member = self.existing_member(member_id)
        self._validate_epoch_of_commit(member, epoch, offsets, ErrorCode.ILLEGAL_GENERATION)

    def _validate_epoch_of_commit(
        self, member: M, epoch: int, offsets: Sequence[OffsetRecord], stale: ErrorCode
    ) -> None:
        if epoch == member.epoch:
            return
        if epoch > member.epoch:
            raise KafkaError(stale, f"Received member epoch {epoch} is newer than current member epoch {member.epoch}.")
        for record in paced(offsets):
            partition = f"{record.key.topic}-{record.key.partition}"
            assigned_epoch = self.assignment_epoch_of(member, record)
            if assigned_epoch is None:
                message = f"Partition {partition} is not assigned or pending revocation for member."
                raise KafkaError(stale, message)
            if epoch < assigned_epoch:
                message = (
                    f"Received member epoch {epoch} is older than assignment epoch {assigned_epoch} for partition "
                    f"{partition}."
                )
                raise KafkaError(stale, message)

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check an OffsetFetch: only a member in its current epoch may read, so that it never reads too early."""
        if member_id is None and member_epoch < 0:
            return
        member = self.existing_member(member_id or "")
        if member_epoch != member.epoch:
            message = (
                f"The received member epoch {member_epoch} does not match the expected member epoch {member.epoch}."
            )
            raise KafkaError(self.stale_error(member), message)
