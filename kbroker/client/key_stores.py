"""Loads key stores and trust stores, in the formats of Kafka's clients and brokers, into a TLS context.

PEM needs Python only, PKCS12 the package `cryptography`. Java's own format, JKS, cannot be read. As in Java, a store of
the type JKS may be a PKCS12 file.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from kbroker.common import StoreSettings, install_command

_JKS = b"\xfe\xed\xfe\xed"
_PEM = b"-----BEGIN"
# All suites of TLS 1.3 that OpenSSL enables. Python cannot enable some of them only.
_TLS_13_SUITES = {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}

_VERIFY = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class KeyStoreError(Exception):
    """A store cannot be loaded. The text names the config and has no secret."""


def server_context(
    key_store: StoreSettings,
    key_password: str | None,
    trust_store: StoreSettings,
    client_auth: str,
    versions: tuple[str, str],
    cipher_suites: Sequence[str],
) -> ssl.SSLContext:
    """Return the context of a listener. `client_auth`: that of ssl.client.auth. Raises KeyStoreError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    set_versions(context, versions, cipher_suites)
    load_keys(context, key_store, key_password)
    context.verify_mode = _VERIFY[client_auth]
    if client_auth != "none":
        load_trusted(context, trust_store)
    return context


def client_context(
    key_store: StoreSettings | None,
    key_password: str | None,
    trust_store: StoreSettings | None,
    checks_host: bool,
    versions: tuple[str, str],
    cipher_suites: Sequence[str] = (),
) -> ssl.SSLContext:
    """Return the context of connections to brokers. `trust_store`: None for the certificates of the system.

    Raises KeyStoreError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    set_versions(context, versions, cipher_suites)
    context.check_hostname = checks_host
    if trust_store is None:
        context.load_default_certs()
    else:
        load_trusted(context, trust_store)
    if key_store is not None:
        load_keys(context, key_store, key_password)
    return context


def check_handshake(server: ssl.SSLContext, client: ssl.SSLContext, host: str, config: str) -> None:
    """Check that a broker with these contexts would connect to another one that has the same, as Kafka does.

    `host`: the name that the certificate must have if the client checks it. Raises KeyStoreError, naming `config`.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        # Each end sends twice at most.
        for end in ends * 2:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    except ssl.SSLError as error:
        reason = getattr(error, "verify_message", None) or error.reason
        raise KeyStoreError(f"{config}: brokers with this certificate cannot connect to each other: {reason}") from None


def load_keys(context: ssl.SSLContext, store: StoreSettings, key_password: str | None) -> None:
    """Load a private key and its certificates. Raises KeyStoreError."""
    with _errors(store):
        if store.location is None:
            key, certificates = _pem_text(store, store.key), _pem_text(store, store.certificates)
            _load_pem(context, f"{key}\n{certificates}".encode(), key_password)
            return
        data = _read(store, store.location)
        if store.type == "PEM":
            _load_pem(context, data, key_password)
        else:
            key_pem, certificates_pem = _load_pkcs12(store, data)
            if not key_pem:
                raise KeyStoreError(f"{store.config}: {store.location} has no private key")
            _load_pem(context, key_pem + certificates_pem, None)


def load_trusted(context: ssl.SSLContext, store: StoreSettings) -> None:
    """Load trusted certificates. Raises KeyStoreError."""
    with _errors(store):
        if store.location is None:
            pem = _pem_text(store, store.certificates).encode()
        else:
            data = _read(store, store.location)
            pem = data if store.type == "PEM" else _load_pkcs12(store, data)[1]
        if _PEM not in pem:
            raise KeyStoreError(f"{store.config}: there is no certificate")
        context.load_verify_locations(cadata=pem.decode())


def set_versions(context: ssl.SSLContext, versions: tuple[str, str], cipher_suites: Sequence[str]) -> None:
    """Limit the TLS versions (the lowest and the highest) and cipher suites. Raises KeyStoreError."""
    lowest, highest = (ssl.TLSVersion[version.replace(".", "_")] for version in versions)
    context.minimum_version, context.maximum_version = lowest, highest
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if not cipher_suites:
        return
    if highest is ssl.TLSVersion.TLSv1_3 and not set(cipher_suites) >= _TLS_13_SUITES:
        missing = ", ".join(sorted(_TLS_13_SUITES - set(cipher_suites)))
        raise KeyStoreError(
            f"ssl.cipher.suites: those of TLSv1.3 cannot be limited; add {missing}, or enable TLSv1.2 only"
        )
    older = [suite for suite in cipher_suites if suite not in _TLS_13_SUITES]
    if older:
        known = {cipher["name"] for cipher in ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).get_ciphers()}
        for suite in older:
            if openssl_name(suite) not in known:
                raise KeyStoreError(f"ssl.cipher.suites: {suite} is not available")
        context.set_ciphers(":".join(map(openssl_name, older)))


def openssl_name(suite: str) -> str:
    """Return OpenSSL's name of a cipher suite of TLS 1.2: ECDHE-RSA-AES256-GCM-SHA384 for TLS_ECDHE_RSA_WITH_..."""
    name = (
        suite.removeprefix("TLS_").replace("_WITH_", "_").replace("RSA_AES", "AES" if "DHE" not in suite else "RSA_AES")
    )
    name = name.replace("AES_128", "AES128").replace("AES_256", "AES256").replace("POLY1305_SHA256", "POLY1305")
    return name.replace("_CBC", "").replace("_", "-")


def _pem_text(store: StoreSettings, text: str | None) -> str:
    if store.type != "PEM" or not text:
        raise KeyStoreError(f"{store.config} is not set; a key and certificates in a config need the store type PEM")
    # As in Kafka's properties files, which often have such texts in one line.
    return text.replace("\\n", "\n")


def _read(store: StoreSettings, path: str) -> bytes:
    with open(path, "rb") as file:
        data = file.read()
    is_pem = _PEM in data
    if is_pem != (store.type == "PEM"):
        found, wanted = ("a PEM file", "PEM") if is_pem else ("not a PEM file", "PKCS12")
        raise KeyStoreError(
            f"{store.config}: {path} is {found}; set {store.config.replace('location', 'type')}={wanted}"
        )
    return data


def _load_pem(context: ssl.SSLContext, pem: bytes, password: str | None) -> None:
    # OpenSSL reads files only. This one has no name and is in memory. An empty password prevents a prompt.
    descriptor = os.memfd_create("kbroker-keys", os.MFD_CLOEXEC)
    try:
        with suppress(BlockingIOError):
            os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=password or "")
    finally:
        os.close(descriptor)


def _load_pkcs12(store: StoreSettings, data: bytes) -> tuple[bytes, bytes]:
    """Return the key and the certificates as PEM."""
    if data.startswith(_JKS):
        raise KeyStoreError(
            f"{store.config}: {store.location} has Java's JKS format; convert it: keytool -importkeystore "
            f"-srckeystore {store.location} -destkeystore keystore.p12 -deststoretype PKCS12"
        )
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ImportError:
        raise KeyStoreError(
            f"{store.config}: PKCS12 needs a package: {install_command('secure')}, or use PEM files"
        ) from None
    loaded = load_pkcs12(data, (store.password or "").encode())
    key = b"" if loaded.key is None else loaded.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificates = [*([loaded.cert] if loaded.cert else []), *loaded.additional_certs]
    return key, b"".join(each.certificate.public_bytes(Encoding.PEM) for each in certificates)


@contextmanager
def _errors(store: StoreSettings) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # ssl.SSLError, too. Its text has no secret, but is not always there.
        reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
        raise KeyStoreError(f"{store.config}: cannot load {store.location or 'PEM'}: {reason}") from None
    except ValueError as error:
        raise KeyStoreError(f"{store.config}: cannot load {store.location or 'PEM'}: {error}") from None
