"""Whole programs on SASL_SSL with ACLs. The rights with which they run are enough in Apache Kafka 4.4.0, too."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.compat.kafka_tools.jvm import Jvm
from tests.compat.mirror.contents import configs
from tests.compat.mirror.mirror_maker import MirrorMaker
from tests.compat.security.mirrored_cluster import (
    AT_SOURCE,
    AT_TARGET,
    GROUP,
    LINES,
    MIRRORED,
    OF_WORKER,
    REMOTE,
    ConnectWorker,
    mirror_maker,
)
from tests.compat.security.secure_broker import Login, SecureBroker
from tests.compat.security.streams_application import SOURCE, Right, StreamsApplication, rights_of
from tests.compat.support import DEADLINE_S, eventually, need_own_broker
from tests.sampling import third_of

pytestmark = pytest.mark.feature("security")

PASSWORD = "secret of an application"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    # The tests use the listener PLAINTEXT.
    "super.users": "User:ANONYMOUS",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "kbroker.audit.log": "audit.log",
    "group.initial.rebalance.delay.ms": "0",
    "group.streams.initial.rebalance.delay.ms": "0",
}


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SecureBroker, SecureBroker]]:
    """Two clusters."""
    need_own_broker()
    pytest.importorskip("cryptography", reason="not run: PKCS12 needs cryptography (extra `secure`)")
    first, second = (SecureBroker(tmp_path_factory.mktemp("authorizing"), SETTINGS) for _ in range(2))
    try:
        first.launch()
        second.start()
        eventually(first.ready, "the first broker is ready", interval=0.02)
        yield first, second
        first.stop()
        second.stop()
    finally:
        first.end()
        second.end()


@pytest.fixture(scope="module")
def broker(brokers: tuple[SecureBroker, SecureBroker]) -> SecureBroker:
    return brokers[0]


def plaintext(broker: SecureBroker, **settings: object) -> dict[str, object]:
    """`settings`: with underscores for dots."""
    own = {name.replace("_", "."): value for name, value in settings.items()}
    return {"bootstrap.servers": broker.bootstrap, "log_level": 0, **own}


def create_topics(broker: SecureBroker, *names: str, **configs: str) -> None:
    admin = AdminClient(plaintext(broker))
    for future in admin.create_topics([NewTopic(name, 1, 1, config=configs) for name in names]).values():
        future.result(DEADLINE_S)


def add_acls(broker: SecureBroker, acls: list[AclBinding]) -> None:
    admin = AdminClient(plaintext(broker))
    for future in admin.create_acls(acls).values():
        future.result(DEADLINE_S)


def add_users(broker: SecureBroker, users: Mapping[str, list[Right]]) -> None:
    """Create users with these rights."""
    admin, scram = AdminClient(plaintext(broker)), ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    credentials = [UserScramCredentialUpsertion(user, scram, PASSWORD.encode()) for user in users]
    for future in admin.alter_user_scram_credentials(credentials).values():
        future.result(DEADLINE_S)
    add_acls(broker, [right.acl(user) for user, rights in users.items() for right in rights])


def client_settings(broker: SecureBroker, user: str) -> dict[str, str]:
    login = Login("SASL_SSL", "SCRAM-SHA-512", user, PASSWORD)
    return {"bootstrap.servers": broker.address(login), **broker.java_settings(login)}


# The last cause of the exception that ends an application without a right, as with Apache Kafka 4.4.0.
ENDS = {
    "READ the source": f"TopicAuthorizationException: Not authorized to access topics: [{SOURCE}]",
    "WRITE the output": "TopicAuthorizationException: Not authorized to access topics: [out.{application}]",
    "READ the group": "GroupAuthorizationException: Not authorized to access group: {application}",
    "WRITE the transactional ids": "TransactionalIdAuthorizationException: Transactional Id authorization failed.",
    "READ its topics": "TopicAuthorizationException: Not authorized to access topics: [{application}-",
    "WRITE its topics": "TopicAuthorizationException: Not authorized to access topics: [{application}-",
}
CREATION_FAILED = "StreamsException: Could not create topic {application}-by-key-repartition."
CREATION_REFUSED = "Unauthorized to CREATE on topics {application}-"
COMPLETE = "complete"


@pytest.fixture(scope="module")
def orders(broker: SecureBroker) -> dict[bytes, int]:
    """The number of orders of each customer."""
    create_topics(broker, SOURCE)
    producer, customers = Producer(plaintext(broker)), {b"customer %d" % number: 10 for number in range(3)}
    for customer, count in customers.items():
        for _ in range(count):
            producer.produce(SOURCE, b"order", key=customer)
    assert producer.flush(DEADLINE_S) == 0
    return customers


class Applications:
    """An application with all rights, and one without each of them (a third of these), at the same time.

    `ids`: by what is missing.
    """

    def __init__(self, broker: SecureBroker, jvm: Jvm, protocol: str, directory: Path) -> None:
        missing = [COMPLETE, *third_of(list(rights_of("", "")))]
        self.ids = {right: f"{protocol}-{right.lower().replace(' ', '-')}" for right in missing}
        create_topics(broker, *map(self.output, missing))
        rights = {right: rights_of(id, self.output(right)) for right, id in self.ids.items()}
        add_users(
            broker,
            {id: [each for name, each in rights[right].items() if name != right] for right, id in self.ids.items()},
        )
        self._running = {
            right: StreamsApplication(
                jvm,
                id,
                self.output(right),
                directory / id,
                {**client_settings(broker, id), "group.protocol": protocol},
            )
            for right, id in self.ids.items()
        }

    def output(self, right: str) -> str:
        return f"out.{self.ids[right]}"

    def failure(self, right: str) -> str:
        return self._running[right].failure

    def wait_for_failure(self, right: str) -> str:
        return eventually(lambda: self.failure(right), f"the failure without {right}")

    def close(self) -> None:
        for application in self._running.values():
            application.close()


@pytest.fixture(params=["classic", "streams"])
def applications(
    request: pytest.FixtureRequest, broker: SecureBroker, orders: object, jvm: Jvm, tmp_path: Path
) -> Iterator[Applications]:
    started = Applications(broker, jvm, request.param, tmp_path)
    yield started
    started.close()


@pytest.mark.client("kafka_tools")
def test_kafka_streams(broker: SecureBroker, jvm: Jvm, orders: dict[bytes, int], applications: Applications) -> None:
    reader = Consumer(plaintext(broker, group_id="reader", auto_offset_reset="earliest"))
    reader.assign([TopicPartition(applications.output(COMPLETE), 0, 0)])
    counts: dict[bytes | None, int] = {}

    def are_counted() -> bool:
        for message in reader.consume(100, timeout=0.1):
            counts[message.key()] = int.from_bytes(message.value() or b"")
        return counts == orders

    def first_offset(right: str) -> int:
        topic = f"{applications.ids[right]}-by-key-repartition"
        return int(reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S)[0])

    eventually(are_counted, "the counts", interval=0, progress=lambda: applications.failure(COMPLETE))
    for right in ENDS.keys() & applications.ids.keys():
        last = applications.wait_for_failure(right).splitlines()[-1]
        assert last.startswith(ENDS[right].format(application=applications.ids[right])), f"without {right}: {last}"
    without_create = applications.ids.get("CREATE its topics", "")
    if without_create.startswith("classic"):
        first, last = applications.wait_for_failure("CREATE its topics").splitlines()
        assert first == CREATION_FAILED.format(application=without_create)
        assert last == "TopicAuthorizationException: Authorization failed."
    elif without_create:
        refused = CREATION_REFUSED.format(application=without_create)
        eventually(lambda: refused in jvm.log(), "a warning of the instance without CREATE")
        assert applications.failure("CREATE its topics") == ""
    # The records of the repartition topic are deleted as soon as they are read; without the right they stay.
    eventually(lambda: first_offset(COMPLETE), "deleted records")
    assert applications.failure(COMPLETE) == ""
    if "DELETE its topics" in applications.ids:
        assert first_offset("DELETE its topics") == 0
        assert applications.failure("DELETE its topics") == ""
    reader.close()


INVOICES = [b"invoice %d" % number for number in range(20)]
# All of them: MirrorMaker translates no offset below the last that it knew when its checkpoint task started.
PROCESSED = len(INVOICES)
LINES_OF_FILE = ["one", "two", "three"]
READER = Right("READ", "topic", MIRRORED).acl("reader")
OF_READER = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, "User:reader", None, AclOperation.ANY, AclPermissionType.ANY
)


@pytest.fixture(scope="module")
def worker(broker: SecureBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectWorker]:
    create_topics(broker, LINES)
    add_users(broker, {"worker": OF_WORKER})
    worker = ConnectWorker(tmp_path_factory.mktemp("connect"), client_settings(broker, "worker"), LINES_OF_FILE)
    yield worker
    worker.kill()


@pytest.fixture(scope="module")
def maker(
    brokers: tuple[SecureBroker, SecureBroker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MirrorMaker]:
    """It mirrors a topic with records, a config and an ACL, and a group that has processed some of them."""
    source, target = brokers
    create_topics(source, MIRRORED, **{"retention.ms": "777600000"})
    add_acls(source, [READER])
    producer = Producer(plaintext(source))
    for invoice in INVOICES:
        producer.produce(MIRRORED, invoice)
    assert producer.flush(DEADLINE_S) == 0
    group = Consumer(plaintext(source, group_id=GROUP))
    group.commit(offsets=[TopicPartition(MIRRORED, 0, PROCESSED)], asynchronous=False)
    group.close()
    add_users(source, {"mirror": AT_SOURCE})
    add_users(target, {"mirror": AT_TARGET})
    settings = (client_settings(cluster, "mirror") for cluster in brokers)
    maker = mirror_maker(tmp_path_factory.mktemp("mirror") / "maker", *settings)
    maker.start()
    yield maker
    maker.kill()


def denied(broker: SecureBroker, user: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (broker.data_dir / "audit.log").read_text().splitlines())
    return [line for line in lines if line["event"] == "denied" and line["principal"] == f"User:{user}"]


@pytest.mark.client("mirror")
def test_mirrormaker_and_a_connect_worker(
    brokers: tuple[SecureBroker, SecureBroker], worker: ConnectWorker, maker: MirrorMaker
) -> None:
    """Both start at the same time. All their requests are allowed."""
    source, target = brokers
    reader, values = Consumer(plaintext(target, group_id=GROUP, auto_offset_reset="earliest")), []
    reader.assign([TopicPartition(REMOTE, 0, 0)])

    def is_mirrored() -> bool:
        assert maker.is_running(), maker.log()[-4000:]
        values.extend(message.value() for message in reader.consume(100, timeout=0.2) if message.error() is None)
        return len(values) >= len(INVOICES)

    def committed() -> int:
        [position] = reader.committed([TopicPartition(REMOTE, 0)], DEADLINE_S)
        return int(position.offset)

    eventually(is_mirrored, "the mirrored records", interval=0, progress=maker.log)
    assert values == INVOICES
    eventually(lambda: 0 < committed() <= PROCESSED, "the group's offset", interval=0.2, progress=maker.log)
    assert configs(target.bootstrap, REMOTE)["retention.ms"] == "777600000"
    admin, right = AdminClient(plaintext(target)), Right("READ", "topic", REMOTE).acl("reader")
    eventually(lambda: admin.describe_acls(OF_READER).result(DEADLINE_S) == [right], "the ACL", progress=maker.log)
    eventually(lambda: worker.written() == LINES_OF_FILE, "the lines of the sink", progress=worker.log)
    assert maker.refusals() == []
    assert denied(source, "mirror") == denied(source, "worker") == denied(target, "mirror") == []
    reader.close()
