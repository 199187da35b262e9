"""A broker with a listener of each security protocol, and the files of its certificates."""

import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from kafka.net.sasl.oauth import AbstractTokenProvider

from scripts.ports import free_ports
from tests.compat.support import BrokerProcess
from tests.unit.support import tokens

PASSWORD = "store-secret"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
# The listeners are called like their security protocols; SSL requires client certificates.
PROTOCOLS = ("SASL_PLAINTEXT", "SASL_SSL", "SSL")


class Login(NamedTuple):
    """`password`: with OAUTHBEARER, the name of a file with a token."""

    protocol: str
    mechanism: str = ""
    user: str = ""
    password: str = ""

    def __str__(self) -> str:
        return f"{self.protocol}-{self.mechanism}" if self.mechanism else self.protocol


LOGINS = [
    *(
        Login(protocol, mechanism, "alice", "plain secret" if mechanism == "PLAIN" else "scram secret")
        for protocol in PROTOCOLS[:2]
        for mechanism in MECHANISMS[:3]
    ),
    Login("SSL"),
    Login("SASL_SSL", "OAUTHBEARER", "alice", "valid.jwt"),
]


class Certificates:
    """`ca`, and `server` and `client` that it has signed, as PEM and PKCS12 files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._openssl("req", "-x509", *self._new_key("ca"), "-out", "ca.pem", "-subj", "/CN=ca",
                      "-addext", "basicConstraints=critical,CA:true")  # fmt: skip
        for name in ("server", "client"):
            self.sign(name)

    def sign(self, name: str) -> None:
        """Create a key and a certificate, or replace them."""
        (self.directory / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
        self._openssl("req", *self._new_key(name), "-out", f"{name}.csr", "-subj", f"/O=Acme/CN={name}")
        self._openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                      "-extfile", "names", "-out", f"{name}.crt")  # fmt: skip
        self._openssl("pkcs12", "-export", "-inkey", f"{name}.key", "-in", f"{name}.crt", "-out", f"{name}.p12.new",
                      "-passout", f"pass:{PASSWORD}")  # fmt: skip
        (self.directory / f"{name}.p12.new").rename(self.directory / f"{name}.p12")
        pem = (self.directory / f"{name}.key").read_text() + (self.directory / f"{name}.crt").read_text()
        (self.directory / f"{name}.pem").write_text(pem)

    def _new_key(self, name: str) -> tuple[str, ...]:
        return "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.directory, check=True, capture_output=True)

    def path(self, name: str) -> str:
        return str(self.directory / name)


class KafkaPythonTokens(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, broker: "SecureBroker", login: Login) -> None:
        self._read = lambda: broker.token(login)

    def token(self) -> str:
        return self._read()


class SecureBroker(BrokerProcess):
    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        self.certificates = certificates = Certificates(directory)
        first = free_ports(len(PROTOCOLS))
        self.ports = {protocol: first + number for number, protocol in enumerate(PROTOCOLS)}
        self._users = directory / "users"
        self._users.write_text(
            "".join(f"{mechanism}=[name=alice,password=scram secret]\n" for mechanism in MECHANISMS[1:3])
        )
        self._write_tokens()
        jaas = f'{PLAIN_MODULE} required user_alice="plain secret";'
        super().__init__(
            directory,
            {
                "sasl.enabled.mechanisms": ",".join(MECHANISMS),
                "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
                "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
                "sasl.oauthbearer.jwks.endpoint.url": Path(certificates.path("jwks.json")).as_uri(),
                "sasl.oauthbearer.expected.issuer": tokens.ISSUER,
                "sasl.oauthbearer.expected.audience": tokens.AUDIENCE,
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": certificates.path("server.p12"),
                "ssl.keystore.password": PASSWORD,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": certificates.path("ca.pem"),
                "listener.name.ssl.ssl.client.auth": "required",
                **settings,
            },
        )

    def _write_tokens(self) -> None:
        path, now_s = self.certificates.directory, int(time.time())
        (path / "jwks.json").write_bytes(tokens.jwks(tokens.rsa_key()))
        for name, issued_s in {"valid.jwt": now_s, "expired.jwt": now_s - 5000}.items():
            (path / name).write_text(tokens.sign(tokens.claims(issued_s)))

    def token(self, login: Login) -> str:
        return Path(self.certificates.path(login.password)).read_text()

    def token_url(self, login: Login) -> str:
        return Path(self.certificates.path(login.password)).as_uri()

    def _command(self) -> list[str]:
        command = super()._command()
        for protocol, port in self.ports.items():
            command += ["--listen", f"{protocol}://127.0.0.1:{port}"]
        return [*command, "--add-scram", f"@{self._users}"]

    def address(self, login: Login) -> str:
        return f"127.0.0.1:{self.ports[login.protocol]}"

    def kafka_python(self, login: Login) -> dict[str, Any]:
        path = self.certificates.path
        settings: dict[str, Any] = {"bootstrap_servers": self.address(login), "security_protocol": login.protocol}
        if login.mechanism == "OAUTHBEARER":
            settings |= {"sasl_mechanism": login.mechanism, "sasl_oauth_token_provider": KafkaPythonTokens(self, login)}
        elif login.mechanism:
            settings |= {"sasl_mechanism": login.mechanism}
            settings |= {"sasl_plain_username": login.user, "sasl_plain_password": login.password}
        if login.protocol.endswith("SSL"):
            settings |= {"ssl_cafile": path("ca.pem")}
        if login.protocol == "SSL":
            settings |= {"ssl_certfile": path("client.crt"), "ssl_keyfile": path("client.key")}
        return settings

    def librdkafka(self, login: Login) -> dict[str, Any]:
        path = self.certificates.path
        settings: dict[str, Any] = {
            "bootstrap.servers": self.address(login),
            "security.protocol": login.protocol,
            "log_level": 0,
        }
        if login.mechanism == "OAUTHBEARER":
            token, end_s = self.token(login), time.time() + 3600
            settings |= {"sasl.mechanism": login.mechanism, "oauth_cb": lambda _: (token, end_s)}
        elif login.mechanism:
            settings |= {"sasl.mechanism": login.mechanism, "sasl.username": login.user}
            settings |= {"sasl.password": login.password}
        if login.protocol.endswith("SSL"):
            settings |= {"ssl.ca.location": path("ca.pem")}
        if login.protocol == "SSL":
            settings |= {"ssl.certificate.location": path("client.crt"), "ssl.key.location": path("client.key")}
        return settings

    def java_settings(self, login: Login) -> dict[str, str]:
        path = self.certificates.path
        settings = {"security.protocol": login.protocol}
        if login.mechanism == "OAUTHBEARER":
            settings |= {"sasl.mechanism": login.mechanism}
            settings |= {"sasl.jaas.config": f"{OAUTHBEARER_PACKAGE}.OAuthBearerLoginModule required;"}
            settings |= {"sasl.login.callback.handler.class": f"{OAUTHBEARER_PACKAGE}.OAuthBearerLoginCallbackHandler"}
            settings |= {"sasl.oauthbearer.token.endpoint.url": self.token_url(login)}
        elif login.mechanism:
            module = PLAIN_MODULE if login.mechanism == "PLAIN" else SCRAM_MODULE
            jaas = f'{module} required username="{login.user}" password="{login.password}";'
            settings |= {"sasl.mechanism": login.mechanism, "sasl.jaas.config": jaas}
        if login.protocol.endswith("SSL"):
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": path("ca.pem")}
        if login.protocol == "SSL":
            settings |= {"ssl.keystore.type": "PKCS12", "ssl.keystore.location": path("client.p12")}
            settings |= {"ssl.keystore.password": PASSWORD, "ssl.key.password": PASSWORD}
        return settings

    def java(self, login: Login, directory: Path) -> str:
        """Return a file with the properties of a Java client, for --command-config."""
        settings = {"request.timeout.ms": "15000", "default.api.timeout.ms": "15000", **self.java_settings(login)}
        file = directory / f"{login}.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        return str(file)
