"""The API versions of a client: the newest that both sides support, or older ones drawn from the seed."""

from random import Random

from protocol.apis import APIS, ApiKey

# Lowest versions that the clients need: record format v2, no auto-created topics, offsets by timestamp, member ids.
_LOWEST = {
    ApiKey.PRODUCE: 3,
    ApiKey.FETCH: 4,
    ApiKey.METADATA: 4,
    ApiKey.JOIN_GROUP: 1,
    ApiKey.OFFSET_COMMIT: 2,
    ApiKey.OFFSET_FETCH: 2,
}
FIRST_METADATA_WITH_IDS = 10
# The last versions with topic names instead of ids.
_LAST_WITH_NAMES = {ApiKey.PRODUCE: 12, ApiKey.FETCH: 12, ApiKey.OFFSET_COMMIT: 9, ApiKey.OFFSET_FETCH: 9}
# The first versions with group.instance.id (KIP-345).
STATIC_MEMBERS = {
    ApiKey.JOIN_GROUP: 5,
    ApiKey.SYNC_GROUP: 3,
    ApiKey.HEARTBEAT: 3,
    ApiKey.LEAVE_GROUP: 3,
    ApiKey.OFFSET_COMMIT: 7,
}

# The APIs whose versions are drawn, in this order. To draw that of another one would change the runs of existing seeds.
_DRAWN = (
    ApiKey.PRODUCE, ApiKey.FETCH, ApiKey.LIST_OFFSETS, ApiKey.METADATA, ApiKey.OFFSET_COMMIT, ApiKey.OFFSET_FETCH,
    ApiKey.FIND_COORDINATOR, ApiKey.JOIN_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP, ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS, ApiKey.LIST_GROUPS, ApiKey.API_VERSIONS, ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS,
    ApiKey.DELETE_RECORDS, ApiKey.INIT_PRODUCER_ID, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS, ApiKey.TXN_OFFSET_COMMIT,
    ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_GROUPS, ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.OFFSET_DELETE, ApiKey.UPDATE_FEATURES,
    ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_TRANSACTIONS, ApiKey.LIST_TRANSACTIONS,
    ApiKey.LIST_CONFIG_RESOURCES, ApiKey.DESCRIBE_TOPIC_PARTITIONS,
)  # fmt: skip

# The highest version to use, by API key.
Caps = dict[int, int]


def newest_versions() -> Caps:
    return {}


def draw_older_versions(random: Random, *, static_members: bool = False) -> Caps:
    """Draw a version of each API. `static_members`: at least the versions with group.instance.id."""
    caps: Caps = {}
    for key in _DRAWN:
        api = APIS[key]
        lowest = max(api.min_version, _LOWEST.get(key, 0), STATIC_MEMBERS.get(key, 0) if static_members else 0)
        caps[key] = random.randint(lowest, api.max_version)
    if caps[ApiKey.METADATA] < FIRST_METADATA_WITH_IDS:
        for named, last in _LAST_WITH_NAMES.items():
            caps[named] = min(caps[named], last)
    return caps


# The last versions without support for transaction version 2 (KIP-890).
_LAST_OF_VERSION_1 = {
    ApiKey.PRODUCE: 11,
    ApiKey.ADD_PARTITIONS_TO_TXN: 3,
    ApiKey.ADD_OFFSETS_TO_TXN: 4,
    ApiKey.END_TXN: 4,
    ApiKey.TXN_OFFSET_COMMIT: 4,
}
# The first versions with the group's generation (KIP-447) and with require_stable.
_LOWEST_IN_TRANSACTIONS = {
    ApiKey.FIND_COORDINATOR: 1,
    ApiKey.TXN_OFFSET_COMMIT: 3,
    ApiKey.OFFSET_FETCH: 7,
}


def draw_older_transactional_versions(random: Random) -> Caps:
    """Draw versions of a client that supports transaction version 1 only."""
    caps = draw_older_versions(random)
    for key, lowest in _LOWEST_IN_TRANSACTIONS.items():
        caps[key] = max(lowest, caps.get(key, lowest))
    for key, last in _LAST_OF_VERSION_1.items():
        caps[key] = min(caps.get(key, last), last)
    return caps
