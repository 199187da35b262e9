"""Metrics of the group coordinator, and those of kafka_exporter about topics and consumer groups."""

from kbroker.exporter.family_tables.family import GAUGE, TP, Family

_GROUPS = "kafka_coordinator_group_groupmetadatamanager_"
_GROUP = "consumergroup, topic, partition"
_GROUP_TOPIC = "consumergroup, topic"

GROUPS_FAMILIES = (
    Family(_GROUPS + "numgroups", GAUGE, "", "Classic consumer groups."),
    Family(_GROUPS + "numgroupsempty", GAUGE, "", "Groups in state Empty."),
    Family(_GROUPS + "numgroupspreparingrebalance", GAUGE, "", "Groups in state PreparingRebalance."),
    Family(_GROUPS + "numgroupscompletingrebalance", GAUGE, "", "Groups in state CompletingRebalance."),
    Family(_GROUPS + "numgroupsstable", GAUGE, "", "Groups in state Stable."),
    Family(_GROUPS + "numgroupsdead", GAUGE, "", "Groups in state Dead."),
    Family(_GROUPS + "numoffsets", GAUGE, "", "Committed offsets."),
    Family("kafka_brokers", GAUGE, "", "Brokers of the cluster. Only the controller reports it."),
    Family("kafka_broker_info", GAUGE, "id, address", "1 for each broker. Only the controller reports it."),
    Family("kafka_topic_partitions", GAUGE, "topic", "Partitions of the topic. Only the controller reports it."),
    Family(
        "kafka_topic_partition_current_offset",
        GAUGE,
        TP,
        "High watermark: the offset after the last record that consumers can read.",
    ),
    Family("kafka_topic_partition_oldest_offset", GAUGE, TP, "First offset that can be read."),
    Family("kafka_topic_partition_leader", GAUGE, TP, "The leader's broker id."),
    Family("kafka_topic_partition_leader_is_preferred", GAUGE, TP, "1 if the preferred replica leads."),
    Family("kafka_topic_partition_replicas", GAUGE, TP, "Replicas."),
    Family("kafka_topic_partition_in_sync_replica", GAUGE, TP, "In-sync replicas."),
    Family(
        "kafka_topic_partition_under_replicated_partition",
        GAUGE,
        TP,
        "1 if it has fewer in-sync replicas than replicas.",
    ),
    Family("kafka_consumergroup_members", GAUGE, "consumergroup", "Members of the group."),
    Family("kafka_consumergroup_current_offset", GAUGE, _GROUP, "Committed offset."),
    Family("kafka_consumergroup_current_offset_sum", GAUGE, _GROUP_TOPIC, "Sum of the committed offsets in the topic."),
    Family("kafka_consumergroup_lag", GAUGE, _GROUP, "High watermark minus committed offset."),
    Family("kafka_consumergroup_lag_sum", GAUGE, _GROUP_TOPIC, "Sum of the lag in the topic."),
)
