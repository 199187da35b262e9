"""Security: what TLS, logins and ACLs cost. Clients with the same settings on both sides.

kbroker and Apache Kafka 4.4.0 are measured in turn. A first round warms both up and is not counted. Figures are
medians. The processor time is that of the whole server. What 1,000 ACLs cost is a figure of kbroker alone: two brokers,
one without an authorizer, one that finds the rule of its client among 1,000.
"""

import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from kbroker.client.security import log_in
from kbroker.common import ClientSecurity
from protocol.messages.k29_acls import AclCreation, CreateAclsRequest, CreateAclsResponse
from protocol.messages.k50_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialUpsertion,
)
from protocol.records.batch import build_batch
from protocol.scram import ScramMechanism, salted_password
from scripts.benchmark.cases import RUN, Meter
from scripts.benchmark.clients import Connection, check, create_topic, librdkafka_producer, send
from scripts.benchmark.frame import (
    COMPARISON,
    add_options,
    comparison,
    footer,
    is_chosen,
    median_of,
    parser,
    publish,
    rounds_text,
    running,
    scratch_directory,
    today,
    write_json,
)
from scripts.benchmark.peers import Kafka, Kbroker, Peer
from scripts.ports import free_ports

USER, PASSWORD, SALT, ITERATIONS = "bench", "secret", b"0123456789abcdef", 4096
RECORDS, VALUE_BYTES, BATCH_RECORDS = 200_000, 1_000, 50
CONNECTIONS, LOGIN_THREADS = 400, 4
# CreateAcls: the types of a topic, of a literal pattern, of WRITE and of ALLOW.
TOPIC, LITERAL, WRITE, ALLOW = 2, 3, 4, 3
ACLS, PRODUCES = 1_000, 20_000

Figures = dict[str, float]
# Names of figures, whether they should be high, and their bounds.
RATE, PROCESSOR = "a second", "processor us of each"
BOUNDS = {RATE: "≥ 1.00", PROCESSOR: "≤ 1.00"}
_numbers = count()


class Certificates:
    """A key and a certificate of 127.0.0.1 that it has signed itself, in one PEM file."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.pem = directory / "server.pem"
        key, certificate = directory / "key", directory / "crt"
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
             "-keyout", str(key), "-out", str(certificate), "-subj", "/CN=127.0.0.1",
             "-addext", "subjectAltName=IP:127.0.0.1"],
            check=True, capture_output=True,
        )  # fmt: skip
        self.pem.write_text(key.read_text() + certificate.read_text())
        self.certificate = certificate


class Secured:
    """The listeners of a server besides PLAINTEXT, and their settings."""

    def __init__(self, certificates: Certificates) -> None:
        self.certificates = certificates
        self.ports = {"SSL": free_ports(), "SASL_PLAINTEXT": free_ports()}

    def settings(self) -> Mapping[str, str]:
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.certificates.pem),
            "sasl.enabled.mechanisms": "SCRAM-SHA-256",
        }


class SecuredKbroker(Kbroker):
    def __init__(self, directory: Path, secured: Secured) -> None:
        super().__init__(directory)
        self.secured = secured

    def command(self) -> list[str]:
        listeners = [f"{name}://127.0.0.1:{port}" for name, port in self.secured.ports.items()]
        settings = [f"{name}={value}" for name, value in self.secured.settings().items()]
        more = [
            *(part for each in listeners for part in ("--listen", each)),
            *(part for each in settings for part in ("--set", each)),
        ]
        return [*super().command(), *more]


class SecuredKafka(Kafka):
    def __init__(self, directory: Path, secured: Secured) -> None:
        super().__init__(directory)
        self.secured = secured

    def prepare(self) -> None:
        super().prepare()
        path = self.directory / "server.properties"
        more = "".join(f",{name}://127.0.0.1:{port}" for name, port in self.secured.ports.items())
        names = ("listeners=", "advertised.listeners=")
        lines = [line + more * line.startswith(names) for line in path.read_text().splitlines()]
        lines += [f"{name}={value}" for name, value in self.secured.settings().items()]
        protocols = ("PLAINTEXT", *self.secured.ports)
        named = ",".join(f"{name}:{name}" for name in protocols)
        lines.append(f"listener.security.protocol.map=CONTROLLER:PLAINTEXT,{named}")
        lines += ["listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config="
                  "org.apache.kafka.common.security.scram.ScramLoginModule required;"]  # fmt: skip
        path.write_text("\n".join(lines) + "\n")


SecuredPeer = SecuredKbroker | SecuredKafka


def new_topic(peer: Peer) -> str:
    topic = f"security-{next(_numbers)}"
    create_topic(peer, topic, 1)
    return topic


def fill(peer: SecuredPeer, topic: str) -> None:
    """Produce with TLS, until all records are acknowledged."""
    address = f"127.0.0.1:{peer.secured.ports['SSL']}"
    certificate = str(peer.secured.certificates.certificate)
    producer = librdkafka_producer(address, security_protocol="SSL", ssl_ca_location=certificate)
    value = bytes(VALUE_BYTES)
    for _ in range(RECORDS):
        send(producer, topic, value, 0, [])
    producer.flush()


def drain(peer: SecuredPeer, topic: str) -> None:
    """Consume all records with TLS."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer({
        "bootstrap.servers": f"127.0.0.1:{peer.secured.ports['SSL']}", "security.protocol": "SSL",
        "ssl.ca.location": str(peer.secured.certificates.certificate), "group.id": "bench", "enable.auto.commit": False,
    })  # fmt: skip
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    received = 0
    while received < RECORDS:
        received += len(consumer.consume(10_000, 1.0))
    consumer.close()


def shake_hands(peer: SecuredPeer) -> None:
    """Open connections with TLS 1.3, one after the other, each with a whole handshake."""
    for _ in range(CONNECTIONS):
        context = ssl.create_default_context(cafile=str(peer.secured.certificates.certificate))
        with socket.create_connection(("127.0.0.1", peer.secured.ports["SSL"]), 10) as connected:
            context.wrap_socket(connected, server_hostname="127.0.0.1").close()


def add_user(peer: Peer) -> None:
    mechanism = ScramMechanism.SCRAM_SHA_256
    row = ScramCredentialUpsertion(
        name=USER, mechanism=mechanism, iterations=ITERATIONS, salt=SALT,
        salted_password=salted_password(mechanism, PASSWORD, SALT, ITERATIONS),
    )  # fmt: skip
    with closing(Connection(peer.port)) as connection:
        response = connection.request(
            AlterUserScramCredentialsRequest(upsertions=[row]), AlterUserScramCredentialsResponse
        )
    check(response.results[0].error_code, USER)


def log_in_often(peer: SecuredPeer) -> None:
    """Log in with SCRAM, on new connections of several threads. Most of the time the clients compute their proof."""
    security = ClientSecurity(mechanism="SCRAM-SHA-256", user=USER, password=PASSWORD)

    def log_in_once(_: int) -> None:
        with closing(Connection(peer.secured.ports["SASL_PLAINTEXT"])) as connection:
            log_in(security, connection.request)

    with ThreadPoolExecutor(LOGIN_THREADS) as threads:
        list(threads.map(log_in_once, range(CONNECTIONS)))


class Case(NamedTuple):
    """`amount`: how many are measured. `prepare` returns what is measured, of a peer."""

    name: str
    amount: float
    prepare: Callable[[SecuredPeer], Callable[[], None]]


def producing(peer: SecuredPeer) -> Callable[[], None]:
    return partial(fill, peer, new_topic(peer))


def consuming(peer: SecuredPeer) -> Callable[[], None]:
    topic = new_topic(peer)
    fill(peer, topic)
    return partial(drain, peer, topic)


def all_cases() -> list[Case]:
    megabytes = RECORDS * VALUE_BYTES / 1e6
    return [
        Case("MB of 1,000 B records produced with TLS", megabytes, producing),
        Case("MB of 1,000 B records consumed with TLS", megabytes, consuming),
        Case("handshakes of TLS 1.3", CONNECTIONS, lambda peer: partial(shake_hands, peer)),
        Case("logins with SCRAM-SHA-256", CONNECTIONS, lambda peer: partial(log_in_often, peer)),
    ]


def measure(case: Case, peer: SecuredPeer) -> Figures:
    run = case.prepare(peer)
    meter, begin = Meter(peer), time.perf_counter()
    run()
    seconds = time.perf_counter() - begin
    return {RATE: case.amount / seconds, PROCESSOR: 1e6 / case.amount * (meter.figure(RUN, 0).processor_time or 0.0)}


def produce_us(peer: Peer, topic: str) -> float:
    """Return the processor time of small Produce requests, in microseconds of each."""
    batches = (build_batch([(int(time.time() * 1000), None, bytes(100), ())]) for _ in range(PRODUCES))
    with closing(Connection(peer.port)) as connection:
        meter = Meter(peer)
        connection.produce_batches(topic, batches, BATCH_RECORDS)
        return 1e6 / PRODUCES * (meter.figure(RUN, 0).processor_time or 0.0)


class AuthorizingKbroker(Kbroker):
    """A broker on which 1,000 ACLs say who may write, the anonymous client among them."""

    def command(self) -> list[str]:
        return [
            *super().command(),
            *("--set", "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
            *("--set", "allow.everyone.if.no.acl.found=true"),
        ]

    def add_acls(self, topic: str) -> None:
        """Create the ACLs. Half of them are of this topic."""
        users = ["ANONYMOUS", *(f"user-{number}" for number in range(1, ACLS))]
        rows = [
            AclCreation(
                resource_type=TOPIC, resource_name=f"other-{number}" if number % 2 else topic,
                resource_pattern_type=LITERAL, principal=f"User:{user}", host="*", operation=WRITE,
                permission_type=ALLOW,
            )
            for number, user in enumerate(users)
        ]  # fmt: skip
        with closing(Connection(self.port)) as connection:
            response = connection.request(CreateAclsRequest(creations=rows), CreateAclsResponse)
        check(next((row.error_code for row in response.results if row.error_code), 0), "ACLs")


def cost_of_acls(base: Path, rounds: int) -> str:
    """Return the row of what a Produce costs with 1,000 ACLs, more than without an authorizer."""
    without, having = Kbroker(base / "without"), AuthorizingKbroker(base / "having")
    with running(without, having):
        for peer in (without, having):
            create_topic(peer, "t", 1)
        having.add_acls("t")
        costs = [(produce_us(without, "t"), produce_us(having, "t")) for _ in range(rounds + 1)][1:]
    before, after = (statistics.median(column) for column in zip(*costs, strict=True))
    print(f"a Produce: {before:.1f} us without an authorizer, {after:.1f} us with {ACLS:,} ACLs", file=sys.stderr)
    return comparison(f"a Produce with {ACLS:,} ACLs, processor us more than without", after - before, None, "≤ 1")


def rows_of(case: Case, figures: Mapping[str, list[Figures]]) -> list[str]:
    ours, theirs = (figures.get(peer.name, []) for peer in (Kbroker, Kafka))
    return [
        comparison(f"{case.name}, {name}", median_of(ours, name), median_of(theirs, name), bound)
        for name, bound in BOUNDS.items()
    ]


def main() -> int:
    options = parser("--security", __doc__, 3)
    add_options(options, kafka=True)
    args = options.parse_args()
    cases = [case for case in all_cases() if is_chosen(case.name, args.only)]
    figures: dict[str, dict[str, list[Figures]]] = {case.name: {} for case in cases}
    with scratch_directory() as base:
        certificates = Certificates(base / "certificates")
        peers: list[SecuredPeer] = [SecuredKbroker(base / "kbroker", Secured(certificates))]
        if not args.no_kafka:
            peers.append(SecuredKafka(base / "kafka", Secured(certificates)))
        with running(*peers):
            for peer in peers:
                add_user(peer)
            for number in range(-1, args.rounds):
                for case in cases:
                    for peer in peers[:: 1 if number % 2 else -1]:
                        measured = measure(case, peer)
                        if number >= 0:
                            figures[case.name].setdefault(peer.name, []).append(measured)
                    print(".", end="", file=sys.stderr, flush=True)
        acls = [cost_of_acls(base, args.rounds)] if is_chosen("ACLs", args.only) else []
    print(footer(rounds_text(args.rounds)))
    rows = [row for case in cases for row in rows_of(case, figures[case.name])] + acls
    publish(args, "security", "--security", COMPARISON, rows, f"{today()}, {rounds_text(args.rounds)}")
    write_json(args, results=figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
