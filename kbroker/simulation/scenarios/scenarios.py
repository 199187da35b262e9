"""The scenarios: which faults each seed may draw, and how often it draws transactions, compaction and recreation."""

from dataclasses import dataclass, field, replace

from kbroker.simulation.scenarios.cluster_faults import (
    CLUSTER,
    COORDINATION,
    DISK_SPACE,
    METADATA,
    OLDER_METADATA,
    OUTAGE,
    POWER_OF_SEVERAL,
    controller,
    isolate,
    kill_all,
)
from kbroker.simulation.scenarios.faults import (
    CLOCK,
    DISK,
    LOSSLESS_DISK,
    LOST_FILES,
    NETWORK,
    NODE,
    POWER,
    ROT,
    Fault,
    full,
    kill,
    restart,
    slow_disk,
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`text`: the description in the list of scenarios. `durable`: all topics have flush.before.ack. `coordination`:
    most runs use an external coordination service. `recurring`: faults that every run has again and again.

    `transactions`: the share of runs with transactions, of the runs whose faults permit them. `exactly_once`: all of
    these have groups that consume, transform and produce. `compaction`: the share of the other runs whose topics are
    compacted. `recreation`: the share of all runs that delete a topic under load and create it again. `brokers`: the
    number of brokers; several replicate all partitions. `many_brokers`: half of the runs have this number instead, if
    it is not 0. `administration`: the share of runs in which leaders are elected on request, topics get other configs
    and more partitions, and partitions are moved; of the runs with many brokers, some join under load. `healing`: the
    share of runs in which replicas of brokers that stay away are rebuilt. `cordoning`: the share of runs with more
    brokers than replicas in which brokers are cordoned and drained. `queues`: all runs have
    topics with delayed delivery, idempotency keys, views, and partitions that close. `consumer_protocol`: the members
    of groups are those of KIP-848. `progress`: writes must go on
    while enough brokers can write (supervisor.py). `share_group`: a share group (KIP-932) consumes all topics.
    `security`: users log in, whose passwords, rights and quotas change.
    `history`: what retention deletes soon is read from archives.
    `group_changes`: the share of runs of a group's scenario with an operator of the share group, and in a cluster with
    administration.
    """

    name: str
    text: str
    faults: dict[str, Fault]
    durable: bool = False
    coordination: bool = False
    transactions: float = 0.0
    compaction: float = 0.0
    exactly_once: bool = False
    recreation: float = 0.0
    brokers: int = 1
    many_brokers: int = 0
    administration: float = 0.0
    healing: float = 0.0
    queues: bool = False
    cordoning: float = 0.0
    recurring: dict[str, Fault] = field(default_factory=dict)
    progress: bool = False
    consumer_protocol: bool = False
    share_group: bool = False
    security: bool = False
    group_changes: float = 0.0
    history: bool = False


_ALL = {**NODE, **NETWORK, **DISK, **POWER, **ROT, **CLOCK}
_ALL_BUT_ROT = {name: fault for name, fault in _ALL.items() if name not in ROT}

_SCENARIOS = (
    Scenario("calm", "no faults", {}),
    Scenario("network", "links are cut, clogged and slow, connections are reset", NETWORK),
    Scenario(
        "crash", "the process is killed, stopped and paused, and its clock jumps", {**NODE, **CLOCK}, recreation=0.2
    ),
    Scenario("power", "the machine loses power", {**POWER, **NODE}, recreation=0.2),
    Scenario(
        "durable", "the machine loses power; what is acknowledged has been synced", {**POWER, **NODE}, durable=True
    ),
    Scenario(
        "disk",
        "reads, writes and syncs fail or are slow; no space, no file descriptors; leftover files",
        {**DISK, **NODE},
        recreation=0.2,
    ),
    Scenario("rot", "bits flip in what was not flushed when the process died", {**ROT, **NODE}),
    Scenario(
        "compaction",
        "topics are compacted; the machine loses power, the disk is slow or full",
        {**POWER, **NODE, "full": full, "slow_disk": slow_disk},
        compaction=1.0,
    ),
    Scenario("coordination", "the coordination service is unreachable", {**COORDINATION, **NODE}, coordination=True),
    Scenario(
        "everything",
        "all faults",
        {**_ALL, **COORDINATION},
        coordination=True,
        transactions=0.5,
        compaction=0.2,
        recreation=0.2,
    ),
    Scenario(
        "everything-durable",
        "all faults but rot and coordination; what is acknowledged has been synced",
        _ALL_BUT_ROT,
        durable=True,
        transactions=0.5,
        compaction=0.2,
    ),
    Scenario(
        "transactions",
        "transactions, with all faults that lose nothing acknowledged",
        {**NODE, **NETWORK, **CLOCK, **COORDINATION, **LOSSLESS_DISK},
        coordination=True,
        transactions=1.0,
    ),
    Scenario(
        "transactions-durable",
        "transactions, with all faults but rot; what is acknowledged has been synced",
        _ALL_BUT_ROT,
        durable=True,
        transactions=1.0,
    ),
    Scenario(
        "lost-files",
        "transactions; index files are removed or emptied while the broker is down",
        {**NODE, **LOST_FILES, **LOSSLESS_DISK},
        transactions=1.0,
    ),
    Scenario(
        "exactly-once",
        "groups consume, transform and produce; all faults but rot; what is acknowledged has been synced",
        _ALL_BUT_ROT,
        durable=True,
        transactions=1.0,
        exactly_once=True,
    ),
    Scenario(
        "queues",
        "delayed delivery, idempotency keys, views, closing partitions; the network, the process, the machine fail",
        {**NODE, **NETWORK, **POWER, "full": full, "slow_disk": slow_disk},
        queues=True,
    ),
)
_HISTORY = Scenario(
    "history",
    "retention deletes what is archived, and consumers read it from there; the process and the network fail",
    {**NODE, **NETWORK, **LOSSLESS_DISK},
    history=True,
)
_CLUSTER = {**NODE, **NETWORK, **CLOCK, **COORDINATION, **CLUSTER, **LOSSLESS_DISK}
_CLUSTER_SCENARIOS = (
    Scenario(
        "cluster",
        "three brokers replicate; brokers die, are cut off and replaced; nothing acknowledged is lost",
        _CLUSTER,
        coordination=True,
        transactions=0.5,
        brokers=3,
    ),
    Scenario(
        "cluster-durable",
        "three brokers replicate, and machines lose power; what is acknowledged has been synced on all of them",
        {**_CLUSTER, **POWER},
        durable=True,
        coordination=True,
        transactions=0.5,
        brokers=3,
    ),
    Scenario(
        "cluster-disks",
        "disks of leaders, followers and the controller fill and empty; writes go on while enough brokers can write",
        {**DISK_SPACE, "kill": kill, "restart": restart, "controller": controller},
        coordination=True,
        transactions=0.2,
        brokers=3,
        progress=True,
    ),
    Scenario(
        "cluster-queues",
        "three brokers with the topics of `queues` die, are cut off and replaced",
        {**NODE, **NETWORK, **COORDINATION, **CLUSTER},
        coordination=True,
        brokers=3,
        queues=True,
    ),
    Scenario(
        "cluster-security",
        "users of three brokers, whose passwords, ACLs and quotas change; brokers die, and are cut off",
        {**NODE, **NETWORK, **COORDINATION, "controller": controller, "isolate": isolate, "kill_all": kill_all},
        coordination=True,
        brokers=3,
        security=True,
    ),
)
_CLUSTER_HISTORY = replace(
    _HISTORY,
    name="cluster-history",
    text="three brokers with the topics of `history` die, are cut off and replaced",
    faults={**NODE, **NETWORK, **COORDINATION, **CLUSTER, **LOSSLESS_DISK},
    coordination=True,
    brokers=3,
)
_GROUPS = Scenario(
    "cluster-groups",
    "three brokers with a group whose members use both protocols (KIP-848) die, are cut off and replaced",
    _CLUSTER,
    coordination=True,
    brokers=3,
    consumer_protocol=True,
    group_changes=0.5,
)
_SHARES = (
    Scenario(
        "share",
        "a share group; the network, the process, the clock and the disk fail, nothing acknowledged is lost",
        {**NODE, **NETWORK, **CLOCK, **LOSSLESS_DISK},
        transactions=0.5,
        compaction=0.2,
        share_group=True,
        group_changes=0.5,
    ),
    Scenario(
        "cluster-share",
        "three brokers with a share group die, are cut off and replaced",
        _CLUSTER,
        coordination=True,
        transactions=0.3,
        brokers=3,
        share_group=True,
        group_changes=0.5,
    ),
)
_EVERYTHING = Scenario(
    "cluster-everything",
    "three to five brokers, some join: also compaction, deletion of records and topics, elections, moves, acks=1",
    {**_CLUSTER, **OUTAGE},
    coordination=True,
    transactions=0.4,
    compaction=0.3,
    recreation=0.3,
    brokers=3,
    many_brokers=5,
    administration=0.7,
    healing=0.3,
    cordoning=0.3,
)
_EVERYTHING_SCENARIOS = (
    _EVERYTHING,
    replace(
        _EVERYTHING,
        name="cluster-everything-durable",
        text="the same, disks fail, and several machines lose power at once; what is acknowledged has been synced",
        faults={**_EVERYTHING.faults, **DISK, **POWER, **POWER_OF_SEVERAL},
        durable=True,
    ),
    replace(
        _EVERYTHING,
        name="cluster-metadata",
        text="the faults of cluster-everything, and the coordination service loses its data, until it is put back",
        transactions=0.3,
        recreation=0.4,
        healing=0.0,
        cordoning=0.2,
        recurring=METADATA,
    ),
    replace(
        _EVERYTHING,
        name="cluster-restore",
        text="the faults of cluster-everything, and the data of the coordination service is restored from an older "
        "copy",
        recreation=0.0,
        administration=0.1,
        healing=0.0,
        cordoning=0.0,
        recurring=OLDER_METADATA,
    ),
)
# Those of a lone broker, from which `any` draws, and all.
LONE_BROKER_SCENARIOS = {scenario.name: scenario for scenario in _SCENARIOS}
SCENARIOS = LONE_BROKER_SCENARIOS | {
    scenario.name: scenario
    for scenario in (_HISTORY, *_CLUSTER_SCENARIOS, _CLUSTER_HISTORY, _GROUPS, *_SHARES, *_EVERYTHING_SCENARIOS)
}
