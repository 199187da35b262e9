"""Metrics of replicas, of the controller and of brokers."""

from kbroker.exporter.family_tables.family import COUNTER, GAUGE, Family

_REPLICAS = "kafka_server_replicamanager_"

REPLICATION_FAMILIES = (
    Family(_REPLICAS + "partitioncount", GAUGE, "", "Partitions on this broker."),
    Family(_REPLICAS + "leadercount", GAUGE, "", "Partitions that this broker leads."),
    Family(
        _REPLICAS + "underreplicatedpartitions", GAUGE, "", "Led partitions with fewer in-sync replicas than replicas."
    ),
    Family(_REPLICAS + "reassigningpartitions", GAUGE, "", "Led partitions whose replicas a reassignment moves."),
    Family(
        _REPLICAS + "underminisrpartitioncount",
        GAUGE,
        "",
        "Led partitions with fewer in-sync replicas than min.insync.replicas, which reject acks=all.",
    ),
    Family(
        _REPLICAS + "atminisrpartitioncount",
        GAUGE,
        "",
        "Led partitions with as many in-sync replicas as min.insync.replicas; those with one replica, too.",
    ),
    Family(_REPLICAS + "isrshrinks_total", COUNTER, "", "Led partitions whose in-sync replicas became fewer."),
    Family(_REPLICAS + "isrexpands_total", COUNTER, "", "Led partitions whose in-sync replicas became more."),
    Family(
        _REPLICAS + "failedisrupdates_total",
        COUNTER,
        "",
        "Changes of in-sync replicas that the controller refused or did not respond to.",
    ),
    Family(
        _REPLICAS + "offlinereplicacount",
        GAUGE,
        "",
        "Logs that are offline until a restart or could not be opened.",
    ),
    Family(
        "kafka_server_replicafetchermanager_maxlag",
        GAUGE,
        "clientId",
        "The largest lag of the partitions that this broker follows: committed records that it does not have.",
    ),
    Family(
        "kafka_server_replicafetchermanager_failedpartitionscount",
        GAUGE,
        "clientId",
        "Followed partitions that cannot be appended to until a restart.",
    ),
    Family(
        "kafka_server_fetcherlagmetrics_consumerlag",
        GAUGE,
        "clientId, topic, partition",
        "The lag of a followed partition after the last response of its leader. clientId ends with the leader's id.",
    ),
    Family(_REPLICAS + "produceridcount", GAUGE, "", "Producer ids with state, in all partitions."),
    Family("kafka_controller_kafkacontroller_activecontrollercount", GAUGE, "", "1 if this broker is the controller."),
    Family("kafka_controller_kafkacontroller_activebrokercount", GAUGE, "", "Brokers that serve clients."),
    Family(
        "kafka_controller_kafkacontroller_fencedbrokercount",
        GAUGE,
        "",
        "Brokers that are known but do not serve clients.",
    ),
    Family(
        "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
        GAUGE,
        "",
        "Partitions whose leader is not their first replica. Every broker reports it.",
    ),
    Family(
        "kafka_controller_kafkacontroller_globaltopiccount",
        GAUGE,
        "",
        "Topics of the cluster. Every broker reports it.",
    ),
    Family(
        "kafka_controller_kafkacontroller_globalpartitioncount",
        GAUGE,
        "",
        "Partitions of the cluster. Every broker reports it.",
    ),
    Family(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        GAUGE,
        "",
        "Partitions without a leader. Every broker reports it.",
    ),
    Family(
        "kafka_controller_controllerstats_leaderelectionrateandtimems_count",
        COUNTER,
        "",
        "Metadata changes in which this broker, as the controller, has elected leaders.",
    ),
    Family(
        "kafka_controller_controllerstats_electionfromeligibleleaderreplicas_total",
        COUNTER,
        "",
        "Elections by this controller of eligible leader replicas (KIP-966).",
    ),
    Family(
        "kafka_controller_controllerstats_uncleanleaderelections_total",
        COUNTER,
        "",
        "Elections by this controller of leaders that may lack committed records.",
    ),
)
