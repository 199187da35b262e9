"""The kinds of groups that this broker has."""

from typing import Any

from kbroker.coordinator.group.classic.classic_groups import ClassicGroups
from kbroker.coordinator.group.consumer.consumer_groups import ConsumerGroups
from kbroker.coordinator.group.group_shard import GroupKind
from kbroker.coordinator.group.records import GroupRecordCodec
from kbroker.coordinator.group.share.share_groups import ShareGroups
from kbroker.coordinator.group.streams.streams_groups import StreamsGroups

# The first kind also has the groups that are known only by their offsets.
GROUP_KINDS: tuple[type[GroupKind[Any]], ...] = (ClassicGroups, ConsumerGroups, ShareGroups, StreamsGroups)

RECORD_CODEC = GroupRecordCodec([kind.codec for kind in GROUP_KINDS])
