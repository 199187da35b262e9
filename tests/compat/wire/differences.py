"""The intended differences between the responses of kbroker and Apache Kafka 4.4.0, with their reasons.

A test fails if a row here is no difference any more.
"""

from fnmatch import fnmatchcase
from typing import Any, NamedTuple

ANY = "*"
ABSENT = "absent"  # the path is not in the response


class Difference(NamedTuple):
    """`where`: a pattern of "API/step/path". `kafka` and `here`: the values, if the row covers only these."""

    where: str
    reason: str
    kafka: Any = ANY
    here: Any = ANY
    versions: tuple[int, int] = (0, 99)

    def applies(self, api: str, version: int) -> bool:
        return self.where.startswith(f"{api}/") and self.versions[0] <= version <= self.versions[1]

    def covers(self, api: str, step: str, path: str, kafka: Any, here: Any) -> bool:
        return (
            fnmatchcase(f"{api}/{step}/{path}", self.where) and self.kafka in (ANY, kafka) and self.here in (ANY, here)
        )


NOT_SERVED = "kbroker does not have this API"
RETENTION = "the default retention is two weeks instead of one"
OWN_CONFIG = "a config that only kbroker has"
NO_ELR = "Kafka sets min.insync.replicas where eligible leader replicas are on; kbroker does not have them"
ERROR_MESSAGE = "kbroker has an error message where Kafka has only the code"
LOG_START = "for an unknown codec kbroker returns the log start offset in all versions that have it"
BOTH = "of two batches for one partition in one request Kafka silently drops one; kbroker stores both"
WHOLE_BATCHES = "kbroker returns complete batches only, Kafka also the beginning of one that does not fit"
NOT_READ = "kbroker lists the aborted transactions of the returned records, Kafka also some after them"
NEVER_BELOW = "in Kafka the last stable offset can be below the log start offset, when that is within a batch"
CONTROLLER_LISTENER = "kbroker's controller has no listener of its own"
INTERNAL_ERROR = "Kafka fails with an internal error; kbroker returns the error of the request, if any"

NO_NAMES = "kbroker does not look up host names, and has addresses in their usual forms only"

# The first offsets of aborted transactions that Kafka lists after the returned records.
LATER_ABORTS = (
    Difference("Fetch/transactions: one batch from 0/*/aborted_transactions", NOT_READ, ABSENT, []),
    *(
        Difference(f"Fetch/transactions: {step}/*/first_offset", NOT_READ, first_offset, ABSENT)
        for step, first_offsets in {
            "one batch from 0": (3, 5, 10, 15),
            "one batch from 3": (5, 10, 15),
            "one batch from 5": (10, 15),
            "one batch from 9": (10, 15),
            "300 bytes": (10, 15),
        }.items()
        for first_offset in first_offsets
    ),
)

DIFFERENCES = (
    Difference("AlterClientQuotas/address localhost/entries/0/*", NO_NAMES),
    Difference("AlterClientQuotas/address 1/entries/0/*", NO_NAMES),
    Difference("ApiVersions/all/api_keys/*", NOT_SERVED, here=ABSENT),
    Difference("CreateTopics/*/configs/retention.ms/value", RETENTION, "604800000", "1209600000", (5, 99)),
    Difference("CreateTopics/one/*/configs/flush.before.ack/*", OWN_CONFIG, ABSENT, versions=(5, 99)),
    Difference("CreateTopics/one/*/configs/replica.lag.max.messages/*", OWN_CONFIG, ABSENT, versions=(5, 99)),
    Difference("CreateTopics/one/*/configs/kbroker.*", OWN_CONFIG, ABSENT, versions=(5, 99)),
    Difference("CreateTopics/one/*/configs/errors.deadletterqueue.*", OWN_CONFIG, ABSENT, versions=(5, 99)),
    Difference("CreateTopics/one/*/configs/min.insync.replicas/config_source", NO_ELR, versions=(5, 99)),
    Difference("DescribeConfigs/all of a topic/*/flush.before.ack/*", OWN_CONFIG, ABSENT),
    Difference("DescribeConfigs/all of a topic/*/replica.lag.max.messages/*", OWN_CONFIG, ABSENT),
    Difference("DescribeConfigs/all of a topic/*/errors.deadletterqueue.*", OWN_CONFIG, ABSENT),
    Difference("DescribeConfigs/all of a topic/*/kbroker.*", OWN_CONFIG, ABSENT),
    Difference("DescribeConfigs/*/min.insync.replicas/config_source", NO_ELR),
    Difference("AlterConfigs/a broker, only validated/*", NO_ELR),
    Difference("IncrementalAlterConfigs/no such operation/*", INTERNAL_ERROR),
    Difference("Metadata/neither id nor name/*error_code", INTERNAL_ERROR, "UNKNOWN_SERVER_ERROR", versions=(12, 99)),
    Difference("DescribeShareGroupOffsets/no partitions/*", INTERNAL_ERROR),
    Difference("Produce/*/error_message", ERROR_MESSAGE, None, "<text>", (8, 99)),
    Difference("Produce/a partition twice/*", BOTH, ABSENT, versions=(3, 99)),
    Difference("Produce/stored/end_offsets", BOTH, versions=(3, 99)),
    Difference("Produce/codec 5/*/log_start_offset", LOG_START, -1, 0, (5, 6)),
    Difference("Fetch/150 bytes of */records", WHOLE_BATCHES),
    Difference("Fetch/transactions: 300 bytes/*/records", WHOLE_BATCHES),
    Difference("Fetch/transactions: committed from */first_offset", NOT_READ, 15, ABSENT),
    Difference("Fetch/transactions: committed from 13/*/aborted_transactions", NOT_READ, ABSENT, []),
    *LATER_ABORTS,
    Difference("DescribeQuorum/the quorum/nodes/*/listeners/*", CONTROLLER_LISTENER, versions=(2, 99)),
    Difference("DeleteRecords/an open transaction, 1: read/last_stable_offset", NEVER_BELOW, 0, 1),
)
