"""The intended differences between the responses of kbroker and Apache Kafka 4.4.0 to users with few rights."""

from tests.compat.wire.differences import INTERNAL_ERROR, NO_ELR, Difference

CREATED = "kbroker responds when the topic is created; Kafka has no leader yet"
TEMPORALITY = "kbroker's page of metrics has totals"

DIFFERENCES = (
    Difference("Metadata/a new topic/topics/in.auto/error_code", CREATED, "UNKNOWN_TOPIC_OR_PARTITION", "NONE"),
    Difference("Metadata/a new topic/topics/in.auto/partitions*", CREATED, versions=(4, 99)),
    Difference("Metadata/a new topic/topics/in.auto/topic_id", CREATED, versions=(4, 99)),
    Difference("AlterConfigs/4 /*", NO_ELR),
    Difference("ShareFetch/an unknown topic/*", INTERNAL_ERROR),
    Difference("GetTelemetrySubscriptions/a client/delta_temporality", TEMPORALITY, True, False),
)
