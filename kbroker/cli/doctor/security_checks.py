"""Checks of listeners: their certificates, who reaches them without a login, and who can read secrets in files."""

import ssl
from collections.abc import Iterator
from contextlib import suppress

from kbroker.cli.doctor.host import CheckContext, CheckResult, ok, problem, warning
from kbroker.client.key_stores import KeyStoreError, server_context
from kbroker.client.security import current_security, tls_context
from kbroker.config.broker.listeners import PLAINTEXT, Endpoint
from kbroker.config.broker.security import PLAIN, TlsSettings

DAY_S = 86_400
MIN_DAYS = 30
NAME = "certificate"


def check_certificates(context: CheckContext) -> Iterator[CheckResult]:
    for listener in context.config.advertised_listeners:
        tls = context.config.listener_security(listener.name).tls
        if tls is not None:
            yield from _check_certificate(context, listener, tls)


def _check_certificate(context: CheckContext, listener: Endpoint, tls: TlsSettings) -> Iterator[CheckResult]:
    renew = f"Renew it: {tls.key_store.config} is read again when the file changes."
    try:
        server = server_context(
            tls.key_store, tls.key_password, tls.trust_store, "none", tls.versions, tls.cipher_suites
        )
    except KeyStoreError as error:
        yield problem(NAME, str(error), "Fix this; the broker will not start.")
        return
    # A client that trusts this certificate whoever has issued it, but no other.
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    own = _handshake(server, client, listener.host).getpeercert(binary_form=True)
    assert own is not None
    client.load_verify_locations(cadata=ssl.DER_cert_to_PEM_cert(own))
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.verify_mode = ssl.CERT_REQUIRED
    try:
        certificate = _handshake(server, client, listener.host).getpeercert()
    except ssl.SSLCertVerificationError as error:
        yield problem(NAME, f"{listener}: {error.verify_message}", renew)
        return
    assert certificate is not None
    client.check_hostname = True
    try:
        _handshake(server, client, listener.host)
    except ssl.SSLCertVerificationError as error:
        names = ", ".join(str(name[1]) for name in certificate.get("subjectAltName", ())) or "none"
        message = f"{listener}: {error.verify_message}; its names are {names}"
        yield problem(NAME, message, "Issue one with the advertised name, or advertise another name.")
        return
    security = current_security()
    if security.has_tls:
        try:
            _handshake(server, tls_context(security), listener.host)
        except (KeyStoreError, ssl.SSLError) as error:
            reason = getattr(error, "verify_message", None) or str(error)
            advice = "Clients like this one cannot connect: correct their trust store, or the broker's chain."
            yield problem(NAME, f"{listener}: not trusted with the options of this command: {reason}", advice)
            return
    days = int((ssl.cert_time_to_seconds(str(certificate["notAfter"])) - context.host.now_ms() / 1000) // DAY_S)
    message = f"{listener}: valid for {days} more days"
    if days < MIN_DAYS:
        yield warning(NAME, message, renew)
    else:
        yield ok(NAME, message if security.has_tls else f"{message}; --command-config checks who trusts it")


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> ssl.SSLObject:
    """Return the client's side of a handshake in memory. Raises ssl.SSLError."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    connected = client.wrap_bio(to_client, to_server, server_hostname=host)
    accepted = server.wrap_bio(to_server, to_client, server_side=True)
    # TLS 1.2 needs three steps.
    for _ in range(3):
        with suppress(ssl.SSLWantReadError):
            connected.do_handshake()
        with suppress(ssl.SSLWantReadError):
            accepted.do_handshake()
    return connected


def check_open_listeners(context: CheckContext) -> Iterator[CheckResult]:
    """Find listeners that let in everybody although others do not."""
    config, name = context.config, "security"
    secured = [each for each in config.listeners if each.security_protocol != PLAINTEXT]
    has_authorizer = bool(config.get("authorizer.class.name"))
    if not secured:
        if has_authorizer:
            advice = "Without TLS or SASL every client is User:ANONYMOUS: secure a listener."
            yield warning(name, "there is an authorizer, and no listener knows its clients", advice)
        else:
            yield ok(name, "no listener has TLS or a login")
        return
    found = list(_open_listeners(context))
    yield from found
    if not has_authorizer:
        advice = "Set authorizer.class.name, super.users and ACLs, unless all users may do everything."
        yield warning(name, "without an authorizer, everybody who has logged in may do everything", advice)
    elif not found:
        yield ok(name, f"{', '.join(map(str, secured))}, with an authorizer")


def _open_listeners(context: CheckContext) -> Iterator[CheckResult]:
    config, name = context.config, "security"
    for listener in config.listeners:
        is_for_brokers = config.get("zookeeper.connect") and listener.name == config.inter_broker_listener_name
        if is_loopback(listener.host) or is_for_brokers:
            continue
        sasl = config.listener_security(listener.name).sasl
        if listener.security_protocol == PLAINTEXT:
            advice = "Bind it to 127.0.0.1, or secure it: it needs no login, and others do."
            yield warning(name, f"{listener} is open to everybody who reaches it", advice)
        elif listener.security_protocol == "SASL_PLAINTEXT" and sasl is not None and PLAIN in sasl.mechanisms:
            yield warning(name, f"{listener}: PLAIN sends passwords in clear", "Use SASL_SSL, or SCRAM-SHA-512.")
    exporter = config.kbroker_metrics_listener
    if exporter and not is_loopback(exporter.rpartition(":")[0].strip("[]")):
        advice = "Bind it to 127.0.0.1, or let only Prometheus reach it: it needs no login."
        yield warning(name, f"kbroker.metrics.listener={exporter} shows the names of topics and groups", advice)


def is_loopback(host: str) -> bool:
    return host.startswith("127.") or host in ("::1", "localhost")


def check_secret_files(context: CheckContext) -> Iterator[CheckResult]:
    """Find secrets in files that others of this machine can read."""
    config = context.config
    stores = [tls.key_store.location for each in config.listeners if (tls := config.listener_security(each.name).tls)]
    own = (f"{context.data_dir}/coordination/coordination.{each}" for each in ("journal", "snapshot"))
    paths = [*stores, current_security().file, *context.secret_files, *own]
    existing = [path for path in dict.fromkeys(paths) if path and context.disk.exists(path)]
    readable = [path for path in existing if context.host.is_readable_by_others(path)]
    if readable:
        advice = f"chmod go= {' '.join(readable)}, and change the secrets if others may have read them."
        yield warning("secrets", f"others can read {', '.join(readable)}", advice)
    elif existing:
        yield ok("secrets", f"only their owner can read {', '.join(existing)}")
