"""The requests of members of the classic protocol in consumer groups, and the conversion of groups.

The decisions are in classic_member.py and conversion.py.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from kbroker.common import KafkaError
from kbroker.coordinator.group.classic.classic_groups import ClassicGroups
from kbroker.coordinator.group.classic.classic_members import ClassicMembers
from kbroker.coordinator.group.classic.rebalance import join_error
from kbroker.coordinator.group.consumer.classic_member import (
    find_classic_member,
    find_leaving_members,
    join_as_heartbeat,
    join_response,
    must_join_again,
    sync_response,
    validate_generation,
    validate_join,
)
from kbroker.coordinator.group.consumer.consumer_group import CLASSIC_JOIN, CLASSIC_SYNC, ConsumerGroup
from kbroker.coordinator.group.consumer.consumer_group_member import ConsumerGroupMember
from kbroker.coordinator.group.consumer.conversion import (
    can_downgrade,
    downgrade_records,
    upgrade,
    upgrade_records,
    validate_upgrade,
)
from kbroker.coordinator.group.consumer.heartbeat import HeartbeatSettings, MemberHeartbeat
from kbroker.coordinator.group.consumer.membership import remove_members
from kbroker.coordinator.group.modern.modern_group import SESSION
from kbroker.coordinator.runtime.operation import CoordinatorResult, LockMode
from protocol.errors import ErrorCode

if TYPE_CHECKING:
    from kbroker.coordinator.group.classic.classic_group import ClassicGroup
    from kbroker.coordinator.group.classic.classic_group_member import RespondToJoin, RespondToSync
    from kbroker.coordinator.group.classic.join import JoinRequest
    from kbroker.coordinator.group.consumer.consumer_groups import ConsumerGroups
    from protocol.messages.k11_classic_groups import MemberIdentity, SyncGroupRequest
