"""The interface of a group of any kind: its description, which offsets it accepts, its deletion (pure)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from kbroker.common import KafkaError
from kbroker.coordinator.group.records import OffsetRecord
from kbroker.runtime.deadlines import Deadlines
from protocol.errors import ErrorCode
from protocol.messages.k15_groups import DescribedGroup


class Now(NamedTuple):
    """The current time: monotonic milliseconds for deadlines, wall clock milliseconds for stored timestamps."""

    mono_ms: int
    wall_ms: int


class Committer(NamedTuple):
    """The sender of an OffsetCommit or TxnOffsetCommit request, as in the request.

    `generation` is the generation of a classic member, the member epoch of any other; -1 in a commit without a member,
    by a simple consumer or a tool. `version` is that of the request.
    """

    member_id: str
    instance_id: str | None
    generation: int
    version: int


class Group(ABC):
    """A group in memory. Its records, its operations and its deadlines are those of its kind (group_shard.py)."""

    __slots__ = ("deadlines", "group_id")

    # The type in ListGroups, which is the name of its kind.
    type_name: ClassVar[str]
    # Whether an empty group becomes one of the kind that its next member is of.
    changes_kind: ClassVar[bool] = True

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        # Monotonic milliseconds.
        self.deadlines: Deadlines[tuple[str, str]] = Deadlines()

    # Description.

    @property
    @abstractmethod
    def state_name(self) -> str:
        """The state in ListGroups and in metrics."""

    @property
    @abstractmethod
    def protocol_type_name(self) -> str:
        """The protocol type in ListGroups; "" for a group that never had a member."""

    @property
    @abstractmethod
    def member_count(self) -> int: ...

    def describe(self) -> DescribedGroup:
        """Return the group for DescribeGroups. Raises GROUP_ID_NOT_FOUND if its kind has another API for that."""
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {self.group_id} is not a classic group.")

    # Offsets. The methods raise KafkaError if the group does not admit the operation.

    @abstractmethod
    def validate_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord], now_ms: int) -> None:
        """Check a commit outside of transactions. If a member's commit is also a heartbeat, restart its session.

        `now_ms` is monotonic.
        """

    @abstractmethod
    def validate_transactional_offset_commit(self, committer: Committer, offsets: Sequence[OffsetRecord]) -> None:
        """Check a commit in a transaction (KIP-447)."""

    @abstractmethod
    def validate_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Check an OffsetFetch. Only members of KIP-848 groups send their id and epoch; else they are None and -1."""

    @abstractmethod
    def validate_offset_delete(self) -> None:
        """Check whether offsets may be deleted, except those of subscribed topics."""

    @abstractmethod
    def is_subscribed_to(self, topic: str) -> bool:
        """Return whether the topic's offsets are in use, so that they are not deleted and do not expire."""

    @abstractmethod
    def offsets_expire_since_ms(self) -> int | None:
        """Return the wall clock time from which the retention of offsets counts.

        It is NO_TIMESTAMP if that is the time of each commit, None if no offset expires.
        """

    # Deletion.

    @property
    @abstractmethod
    def is_unused(self) -> bool:
        """Whether nobody is in the group or about to join it, so that it is deleted with its last offset."""

    @abstractmethod
    def validate_delete(self) -> None:
        """Raise KafkaError if DeleteGroups must not delete the group."""

    @abstractmethod
    def tombstones(self) -> Sequence[object]:
        """Return the records that delete the group, without those of its offsets."""
