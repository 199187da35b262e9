"""Where kbroker means to answer otherwise than Apache Kafka 4.3.1, and why.

Each row is checked to be still a difference: one that is gone must be taken out here.
"""

from fnmatch import fnmatchcase
from typing import Any, NamedTuple

ANY = "*"
ABSENT = "absent"  # the path is not in the answer


class Difference(NamedTuple):
    """`where`: a pattern of "API/step/path"; `kafka` and `here`: the two values, if only these are meant."""

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


NOT_SERVED = "an API that kbroker does not have yet"
NO_FEATURES = "features of Kafka's own metadata, or of groups that kbroker does not have yet"
RETENTION = "two weeks are kept by default instead of one"
OWN_CONFIG = "kbroker's own configs"
NO_ELR = "Kafka pins min.insync.replicas where eligible leader replicas are on; kbroker does not have them yet"
SAYS_WHY = "kbroker says why, where Kafka has only the code"
ALL_OF_THE_LOG = "a codec that does not exist is told as in the later versions"
BOTH = "of two batches for one partition in one request Kafka drops one in silence; kbroker stores and tells both"
WHOLE_BATCHES = "kbroker gives whole batches, never the beginning of one that does not fit"
NOT_READ = "kbroker names the aborted transactions of what it returns, Kafka also some beyond that"
NEVER_BELOW = "the last stable offset is never below the log start; in Kafka the log start may lie within its batch"
CONTROLLER_LISTENER = "kbroker's controller has no listener of its own: it is reached at the broker's"
UNFORESEEN = "Kafka fails unforeseen; kbroker names the mistake"

# Name, and the first version of ApiVersions that Kafka tells it in.
FEATURES = {
    "group.version": 3, "metadata.version": 3, "share.version": 3, "streams.version": 3, "kraft.version": 4,
    "eligible.leader.replicas.version": 3,
}  # fmt: skip
OTHER_FEATURES = (
    Difference(f"ApiVersions/all/*_features/{name}/*", NO_FEATURES, here=ABSENT, versions=(first, 99))
    for name, first in FEATURES.items()
)

# What Kafka names beyond a fetch that returns little: the first offsets of aborted transactions.
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
    Difference("ApiVersions/all/api_keys/*", NOT_SERVED, here=ABSENT),
    *OTHER_FEATURES,
    Difference("ApiVersions/all/supported_features", NO_FEATURES, ABSENT, [], (3, 3)),
    Difference("CreateTopics/*/configs/retention.ms/value", RETENTION, "604800000", "1209600000", (5, 99)),
    Difference("CreateTopics/one/*/configs/flush.before.ack/*", OWN_CONFIG, ABSENT, versions=(5, 99)),
    Difference("CreateTopics/one/*/configs/kbroker.*", OWN_CONFIG, ABSENT, versions=(5, 99)),
    Difference("CreateTopics/one/*/configs/min.insync.replicas/config_source", NO_ELR, versions=(5, 99)),
    Difference("DescribeConfigs/all of a topic/*/flush.before.ack/*", OWN_CONFIG, ABSENT),
    Difference("DescribeConfigs/all of a topic/*/kbroker.*", OWN_CONFIG, ABSENT),
    Difference("DescribeConfigs/*/min.insync.replicas/config_source", NO_ELR),
    Difference("AlterConfigs/a broker, only validated/*", NO_ELR),
    Difference("IncrementalAlterConfigs/no such operation/*", UNFORESEEN),
    Difference("Metadata/neither id nor name/*error_code", UNFORESEEN, "UNKNOWN_SERVER_ERROR", versions=(12, 99)),
    Difference("FindCoordinator/share/*/error_message", SAYS_WHY, "", "<text>", (4, 99)),
    Difference("Produce/*/error_message", SAYS_WHY, None, "<text>", (8, 99)),
    Difference("Produce/a partition twice/*", BOTH, ABSENT, versions=(3, 99)),
    Difference("Produce/stored/end_offsets", BOTH, versions=(3, 99)),
    Difference("Produce/codec 5/*/log_start_offset", ALL_OF_THE_LOG, -1, 0, (5, 6)),
    Difference("Fetch/150 bytes of */records", WHOLE_BATCHES),
    Difference("Fetch/transactions: 300 bytes/*/records", WHOLE_BATCHES),
    Difference("Fetch/transactions: committed from */first_offset", NOT_READ, 15, ABSENT),
    Difference("Fetch/transactions: committed from 13/*/aborted_transactions", NOT_READ, ABSENT, []),
    *LATER_ABORTS,
    Difference("DescribeQuorum/the quorum/nodes/*/listeners/*", CONTROLLER_LISTENER, versions=(2, 99)),
    Difference("DeleteRecords/an open transaction, 1: read/last_stable_offset", NEVER_BELOW, 0, 1),
)
