"""`kbroker start --secure`: certificates, an administrator, and files with which clients connect.

They are in the directory `secure` of the data directory, which only this user can read. A later start reuses them, and
issues the certificate again if it lacks an advertised name or ends soon; clients trust the authority, which stays.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from secrets import token_urlsafe
from typing import TYPE_CHECKING

from kbroker.cli.common.errors import CliError, usage_error
from kbroker.common import install_command
from kbroker.config import BrokerConfig
from kbroker.config.broker.jaas import SCRAM_MODULE
from kbroker.config.broker.security import FirstUser
from kbroker.config.definitions.security import STANDARD_AUTHORIZER
from kbroker.config.sources.static_configs import StaticConfig, StaticConfigs
from kbroker.pipeline.security import kafka_options
from protocol.scram import MECHANISMS, MIN_ITERATIONS

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID
except ImportError:
    raise CliError(f"--secure needs a package: {install_command('secure')}") from None

if TYPE_CHECKING:
    from collections.abc import Callable

ORIGIN = "--secure"
PROTOCOL = "SASL_SSL"
ADMIN, MECHANISM = "admin", "SCRAM-SHA-512"
AUTHORITY_DAYS, CERTIFICATE_DAYS, RENEWAL_DAYS = 3650, 365, 30
# Every client of this machine can use these names.
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")


def secured_properties(properties: StaticConfigs) -> StaticConfigs:
    """Return the configs of a secured broker. Raises CliError, ConfigError."""
    for name, source in properties.items():
        if name.startswith(("ssl.", "sasl.", "listener.name.")):
            raise usage_error(f"{name} cannot be set with --secure ({source.origin})")
    directory = _directory(properties)
    defaults = {
        "kbroker.audit.log": "audit.log",
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": f"User:{ADMIN}",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(directory / "server.pem"),
        # For the brokers of --brokers, which connect to each other.
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.pem"),
        "sasl.enabled.mechanisms": MECHANISM,
    }
    return {name: StaticConfig(text, ORIGIN) for name, text in defaults.items()} | properties


def _directory(properties: StaticConfigs) -> Path:
    return Path(os.path.abspath(properties["log.dirs" if "log.dirs" in properties else "log.dir"].text), "secure")


def secure(properties: StaticConfigs) -> tuple[StaticConfigs, FirstUser, Callable[[str], Path]]:
    """Return the configs of a secured broker, its administrator, and a function that writes the files for clients.

    That function needs the bootstrap address. Raises CliError, ConfigError, OSError.
    """
    secured, directory = secured_properties(properties), _directory(properties)
    config = BrokerConfig.load({name: source.text for name, source in secured.items()})
    for listener in config.listeners:
        if listener.security_protocol != PROTOCOL:
            raise usage_error(f"--secure needs {PROTOCOL} for all listeners, and {listener} has not")
    directory.parent.mkdir(parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)
    _issue(directory, {*LOCAL_NAMES, *(endpoint.host for endpoint in config.advertised_listeners)})
    password = _password(directory / "admin.password")
    admin = FirstUser(ADMIN, MECHANISMS[MECHANISM], password, MIN_ITERATIONS)
    return secured, admin, lambda bootstrap: _write_client_files(directory, bootstrap, password)


def _password(path: Path) -> str:
    """Return the administrator's password, which the first start chooses. Raises CliError."""
    if not path.exists():
        _write(path, token_urlsafe(24))
    password = path.read_text().strip()
    if not password.isprintable() or not password or {*password} & {'"', "\\"}:
        raise CliError(f"{path} must have one line, without quotes and backslashes: clients' files have it, too")
    return password


def _write(path: Path, text: str | bytes) -> None:
    """Replace a file. Only this user can read it, at any moment."""
    new = path.with_suffix(".new")
    with suppress(FileNotFoundError):
        new.unlink()
    data = text if isinstance(text, bytes) else text.encode()
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


# Certificates.


def _issue(directory: Path, names: Iterable[str]) -> None:
    """Create what is missing of the authority (ca.pem, ca.key) and of the broker's certificate (server.pem)."""
    now = datetime.now(UTC)
    authority, authority_key, key_store = directory / "ca.pem", directory / "ca.key", directory / "server.pem"
    if not authority.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(f"kbroker {token_urlsafe(6)}")
        builder = _builder(subject, subject, key, now, AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        _write(authority_key, _key_pem(key))
        _write(authority, builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
        with suppress(FileNotFoundError):
            key_store.unlink()
    issuer = x509.load_pem_x509_certificate(authority.read_bytes())
    wanted = {*names}
    if key_store.exists():
        present = x509.load_pem_x509_certificate(key_store.read_bytes())
        if wanted <= certificate_names(present) and present.not_valid_after_utc - now > timedelta(days=RENEWAL_DAYS):
            return
    if not authority_key.exists():
        raise CliError(f"{key_store} must be issued again, and {authority_key} is missing: put it back for this start")
    issuer_key = load_pem_private_key(authority_key.read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name("kbroker"), issuer.subject, key, now, CERTIFICATE_DAYS)
    for extension, is_critical in (
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage(signs_certificates=False), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False),
        (x509.SubjectAlternativeName([_alternative_name(name) for name in sorted(wanted)]), False),
    ):
        builder = builder.add_extension(extension, critical=is_critical)
    certificate = builder.sign(issuer_key, hashes.SHA256())
    chain = certificate.public_bytes(Encoding.PEM) + issuer.public_bytes(Encoding.PEM)
    _write(key_store, chain + _key_pem(key))


def certificate_names(certificate: x509.Certificate) -> set[str]:
    """Return the DNS names and the addresses of a certificate."""
    with suppress(x509.ExtensionNotFound):
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return {*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))}
    return set()


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    # Clients whose clocks are a little late accept it, too.
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        content_commitment=False, key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


# Files for clients.


def _write_client_files(directory: Path, bootstrap: str, password: str) -> Path:
    """Write the files for Java and Kafka's tools, librdkafka, and Python. Returns their directory."""
    authority, properties = str(directory / "ca.pem"), directory / "client.properties"
    jaas = f'{SCRAM_MODULE} required username="{ADMIN}" password="{password}";'
    common = {"security.protocol": PROTOCOL, "sasl.mechanism": MECHANISM}
    trust_store = {"ssl.truststore.type": "PEM", "ssl.truststore.location": authority}
    java = {"bootstrap.servers": bootstrap} | common | trust_store | {"sasl.jaas.config": jaas}
    librdkafka = {"bootstrap.servers": bootstrap} | common | {"ssl.ca.location": authority}
    librdkafka |= {"sasl.username": ADMIN, "sasl.password": password}
    python = {
        "bootstrap_servers": bootstrap, "security_protocol": PROTOCOL, "ssl_cafile": authority,
        "sasl_mechanism": MECHANISM, "sasl_plain_username": ADMIN, "sasl_plain_password": password,
    }  # fmt: skip
    _write(properties, _lines({name: text.replace("\\", "\\\\") for name, text in java.items()}))
    _write(directory / "librdkafka.conf", _lines(librdkafka))
    _write(directory / "confluent-kafka.json", json.dumps(librdkafka, indent=2))
    _write(directory / "kafka-python.json", json.dumps(python, indent=2))
    _write(directory / "spark.json", json.dumps(kafka_options(bootstrap, str(properties)), indent=2))
    return directory


def _lines(settings: Mapping[str, str]) -> str:
    return "".join(f"{name}={text}\n" for name, text in settings.items())
