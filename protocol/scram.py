"""SCRAM (RFC 5802) with SHA-256 and SHA-512, without I/O: credentials, and the messages of both sides.

As in Kafka, user names and passwords are UTF-8 without SASLprep, and there is no channel binding.

    client: n,,n=USER,r=CLIENT_NONCE                   server: r=CLIENT_NONCE SERVER_NONCE,s=SALT,i=ITERATIONS
    client: c=biws,r=CLIENT_NONCE SERVER_NONCE,p=PROOF   server: v=SIGNATURE, or e=ERROR
"""

from __future__ import annotations

import hmac
import re
from base64 import b64decode, b64encode
from enum import IntEnum
from hashlib import new as new_hash
from hashlib import pbkdf2_hmac
from typing import NamedTuple


class ScramMechanism(IntEnum):
    """Numbered as in the credentials requests of KIP-554."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def digest(self) -> str:
        """The name of the hash function."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"


MECHANISMS = {mechanism.sasl_name: mechanism for mechanism in ScramMechanism}
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 16384

_VALUE = r"[\x01-\x2b\x2d-\x7f]+"
_NAME = r"(?:[^\0=,]|=2C|=3D)+"
_FIRST = re.compile(rf"n,(?:a=({_NAME}))?,(n=({_NAME}),r=({_VALUE})((?:,[A-Za-z]+=[^\0,]+)*))")
_FINAL = re.compile(rf"(c=([A-Za-z0-9+/=]+),r=({_VALUE}))(?:,[A-Za-z]+=[^\0,]+)*,p=([A-Za-z0-9+/=]+)")
_SERVER_FIRST = re.compile(rf"r=({_VALUE}),s=([A-Za-z0-9+/=]+),i=([0-9]{{1,9}})(?:,.*)?")
_NO_BINDING = b"n,,"


class ScramError(Exception):
    """A message is malformed, or a proof or a signature is wrong."""


class ScramCredential(NamedTuple):
    """What a server stores of a password. It proves a client, but does not suffice to log in."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    return pbkdf2_hmac(mechanism.digest, password.encode(), salt, iterations)


def credential(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    """Return what a server stores, from the salted password."""
    stored_key = _hash(mechanism, _hmac(mechanism, salted, b"Client Key"))
    return ScramCredential(iterations, salt, stored_key, _hmac(mechanism, salted, b"Server Key"))


def _hmac(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, mechanism.digest)


def _hash(mechanism: ScramMechanism, data: bytes) -> bytes:
    return new_hash(mechanism.digest, data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _decode(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ScramError("invalid base64") from None


class ClientFirst(NamedTuple):
    """The first message of a client. `extensions`: "tokenauth" of delegation tokens, for example."""

    header: bytes
    authorization_id: str
    user: str
    nonce: str
    bare: str
    extensions: str


def parse_client_first(message: bytes) -> ClientFirst:
    """Raises ScramError."""
    match = _FIRST.fullmatch(_text(message))
    if match is None:
        raise ScramError("invalid client first message")
    authorization_id, bare, user, nonce, extensions = match.groups()
    header = message[: len(message) - len(bare.encode())]
    return ClientFirst(header, _unescape(authorization_id or ""), _unescape(user), nonce, bare, extensions)


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("a message is not UTF-8") from None


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


class ServerExchange:
    """The server's side of one login, after the client's first message. `server_nonce` is random."""

    def __init__(
        self, mechanism: ScramMechanism, first: ClientFirst, credential: ScramCredential, server_nonce: str
    ) -> None:
        self._mechanism, self._credential = mechanism, credential
        self._header, self._nonce = first.header, first.nonce + server_nonce
        salt = b64encode(credential.salt).decode()
        self.first = f"r={self._nonce},s={salt},i={credential.iterations}".encode()
        self._auth_prefix = f"{first.bare},{self.first.decode()},"

    def finish(self, message: bytes) -> bytes:
        """Return the server's final message. Raises ScramError unless the client has proved its password."""
        match = _FINAL.fullmatch(_text(message))
        if match is None:
            raise ScramError("invalid client final message")
        without_proof, binding, nonce, proof_text = match[0].rpartition(",p=")[0], *match.groups()[1:]
        # CVE-2024-56128: without this check, the exchange of another login could be repeated.
        if not hmac.compare_digest(nonce.encode(), self._nonce.encode()):
            raise ScramError("invalid client nonce in the final message")
        # Java clients send the header without an authorization id also if they have sent one.
        if _decode(binding) not in (self._header, _NO_BINDING):
            raise ScramError("invalid channel binding")
        mechanism, credential, proof = self._mechanism, self._credential, _decode(proof_text)
        auth_message = (self._auth_prefix + without_proof).encode()
        signature = _hmac(mechanism, credential.stored_key, auth_message)
        if len(proof) != len(signature):
            raise ScramError("invalid client credentials")
        if not hmac.compare_digest(_hash(mechanism, _xor(proof, signature)), credential.stored_key):
            raise ScramError("invalid client credentials")
        return b"v=" + b64encode(_hmac(mechanism, credential.server_key, auth_message))


class ClientExchange:
    """The client's side of one login. `nonce`: random printable text without commas."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str) -> None:
        self._mechanism, self._password, self._nonce = mechanism, password, nonce
        self._bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self.first = _NO_BINDING + self._bare.encode()
        self._signature = b""

    def final(self, server_first: bytes) -> bytes:
        """Return the client's final message. Raises ScramError."""
        match = _SERVER_FIRST.fullmatch(_text(server_first))
        if match is None:
            raise ScramError("the broker sent an invalid message")
        nonce, salt, iterations = match[1], _decode(match[2]), int(match[3])
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ScramError("the broker sent an invalid nonce")
        if not MIN_ITERATIONS <= iterations <= 10_000_000:
            raise ScramError(f"the broker requests {iterations} iterations")
        mechanism = self._mechanism
        salted = salted_password(mechanism, self._password, salt, iterations)
        client_key = _hmac(mechanism, salted, b"Client Key")
        without_proof = f"c={b64encode(_NO_BINDING).decode()},r={nonce}"
        auth_message = f"{self._bare},{server_first.decode()},{without_proof}".encode()
        proof = _xor(client_key, _hmac(mechanism, _hash(mechanism, client_key), auth_message))
        self._signature = _hmac(mechanism, _hmac(mechanism, salted, b"Server Key"), auth_message)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Raises ScramError unless the server knows the credential of the password, too."""
        text = _text(server_final)
        if not text.startswith("v=") or not hmac.compare_digest(_decode(text[2:].partition(",")[0]), self._signature):
            raise ScramError("the broker does not know the password")
