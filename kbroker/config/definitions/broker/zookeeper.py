"""Broker configs: the connection to ZooKeeper, with the names of Kafka 3."""

from kbroker.config.config_def import HIGH, LOW, MEDIUM, READ_ONLY, ConfigKey
from kbroker.config.validators import at_least, one_of_ignoring_case
from kbroker.config.values import BOOLEAN, INT, PASSWORD, STRING

# fmt: off
KEYS = (
    ConfigKey("kbroker.zookeeper.digest", PASSWORD, None, None, MEDIUM, READ_ONLY,
        "Only in kbroker. USER:PASSWORD with which the broker authenticates to ZooKeeper (scheme digest)."),
    ConfigKey("zookeeper.connect", STRING, None, None, HIGH, READ_ONLY,
        "Kafka 3's. HOST:PORT[,HOST:PORT...][/CHROOT] of the ZooKeeper ensemble that stores the cluster metadata; "
        "without it, the broker stores it in its data directory."),
    ConfigKey("zookeeper.connection.timeout.ms", INT, None, None, HIGH, READ_ONLY,
        "Kafka 3's. Time that a start waits for ZooKeeper; zookeeper.session.timeout.ms if it is not set."),
    ConfigKey("zookeeper.session.timeout.ms", INT, 18_000, at_least(1000), HIGH, READ_ONLY,
        "Kafka 3's. Time without a connection after which the broker loses its session: others take over, "
        "and it joins again. ZooKeeper adapts it to its own limits."),
    ConfigKey("zookeeper.set.acl", BOOLEAN, False, None, HIGH, READ_ONLY,
        "Kafka 3's. Whether nodes in ZooKeeper can be read and written only with kbroker.zookeeper.digest."),
    ConfigKey("zookeeper.ssl.client.enable", BOOLEAN, False, None, MEDIUM, READ_ONLY,
        "Kafka 3's. Whether connections to ZooKeeper use TLS."),
    ConfigKey("zookeeper.ssl.endpoint.identification.algorithm", STRING, "HTTPS", one_of_ignoring_case("", "HTTPS"),
        LOW, READ_ONLY,
        "Kafka 3's. HTTPS to check the host name in the certificate of a ZooKeeper server; empty for no check."),
    ConfigKey("zookeeper.ssl.keystore.location", STRING, None, None, MEDIUM, READ_ONLY,
        "Kafka 3's. PEM file with the private key and the certificate that the broker presents to ZooKeeper."),
    ConfigKey("zookeeper.ssl.keystore.password", PASSWORD, None, None, MEDIUM, READ_ONLY,
        "Kafka 3's. Password of the private key in zookeeper.ssl.keystore.location."),
    ConfigKey("zookeeper.ssl.keystore.type", STRING, "PEM", one_of_ignoring_case("PEM"), MEDIUM, READ_ONLY,
        "Kafka 3's. Format of zookeeper.ssl.keystore.location: PEM only."),
    ConfigKey("zookeeper.ssl.truststore.location", STRING, None, None, MEDIUM, READ_ONLY,
        "Kafka 3's. PEM file with the trusted certificates; without it, those of the system are trusted."),
    ConfigKey("zookeeper.ssl.truststore.type", STRING, "PEM", one_of_ignoring_case("PEM"), MEDIUM, READ_ONLY,
        "Kafka 3's. Format of zookeeper.ssl.truststore.location: PEM only."),
)
# fmt: on
