"""The handshake that begins each connection between brokers: both sides prove that they know the cluster's secret.

    initiator -> responder   HELLO: nonce, ids and broker epochs of both sides, channel, cluster id
    responder -> initiator   CHALLENGE: nonce, and the responder's proof; or a refusal with its reason
    initiator -> responder   PROOF: the initiator's proof. Requests may follow immediately.

A proof is the HMAC-SHA256 of the prover's role, the HELLO, the responder's nonce and the channel binding. Each side
chooses a nonce, so a recorded handshake cannot be replayed. The role keeps a proof from being sent back to its sender
as a valid one. The responder proves first, so the initiator sends nothing derived from the secret to a stranger. A
connection is bound to the broker epochs of both sides, so a broker never gets a request that was meant for its former
process.

With TLS the handshake takes place inside it. A certificate of the cluster's CA does not make its owner a broker:
clients may have one, too. The channel binding is the client's Finished message of TLS (tls-unique in RFC 5929), which
differs between any two connections. So the owner of a certificate cannot pass a handshake on between two brokers, as it
could where host names are not checked. Without TLS it is empty.

Each message is one frame. Before the handshake has ended, frames have at most MAX_HANDSHAKE_BYTES.
"""

from __future__ import annotations

from dataclasses import dataclass
from hmac import compare_digest, digest
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

MAX_HANDSHAKE_BYTES = 1024
NONCE_BYTES = 32
PROOF_BYTES = 32
# The last byte is the version of this protocol.
_MAGIC = b"kbroker-inter-broker\x01"
# Initiator's nonce, id and epoch; responder's id and epoch; channel; size of the cluster id.
_HELLO = Struct(f">{NONCE_BYTES}siqiqBB")
_STATUS = Struct(">B")
_ACCEPTED, _REFUSED = 0, 1
_INITIATOR, _RESPONDER = b"initiator\0", b"responder\0"
_MAX_REASON_BYTES = 200
# Usual reasons after a restart or an expired session, until both brokers have the same metadata.
FORMER_EPOCH = "a former epoch of the broker"
_OTHER_EPOCH = "another epoch of this broker is meant"


@dataclass(slots=True)
class BrokerIdentity:
    """The identity of this broker in handshakes. `secret`: bytes that only the brokers of this cluster know.

    `broker_epoch` is set at each registration. Connections are bound to it: those of a former epoch are not used.
    """

    cluster_id: str
    secret: bytes
    broker_id: int
    broker_epoch: int = -1


class HandshakeError(Exception):
    """The handshake has failed. `reason` is a constant text for the log and the peer, `detail` is for the log.

    `is_transient`: it is expected to succeed later, for example when both brokers have the same metadata.
    """

    def __init__(self, reason: str, *, is_transient: bool = False, **detail: object) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_transient = is_transient
        self.detail = detail


class Hello(NamedTuple):
    """The first message: `initiator` and `responder` are (broker id, broker epoch)."""

    nonce: bytes
    initiator: tuple[int, int]
    responder: tuple[int, int]
    channel: int
    cluster_id: str

    def encode(self) -> bytes:
        cluster_id = self.cluster_id.encode()
        fixed = _HELLO.pack(self.nonce, *self.initiator, *self.responder, self.channel, len(cluster_id))
        return _MAGIC + fixed + cluster_id

    @classmethod
    def decode(cls, frame: bytes) -> Hello:
        """Raises HandshakeError."""
        if not frame.startswith(_MAGIC):
            raise HandshakeError("request before the handshake")
        try:
            nonce, *ids, channel, size = _HELLO.unpack_from(frame, len(_MAGIC))
            cluster_id = frame[len(_MAGIC) + _HELLO.size :]
            if len(cluster_id) != size:
                raise HandshakeError("malformed handshake")
            return cls(nonce, (ids[0], ids[1]), (ids[2], ids[3]), channel, cluster_id.decode())
        except (StructError, UnicodeDecodeError):
            raise HandshakeError("malformed handshake") from None


class InitiatorHandshake:
    """The side that has opened the connection, to the broker with this id and epoch. `nonce` must be random."""

    def __init__(self, identity: BrokerIdentity, responder: tuple[int, int], channel: int, nonce: bytes) -> None:
        self._secret = identity.secret
        initiator = identity.broker_id, identity.broker_epoch
        self.hello = Hello(nonce, initiator, responder, channel, identity.cluster_id).encode()

    def answer(self, challenge: bytes, binding: bytes = b"") -> bytes:
        """Check the CHALLENGE, and return the PROOF. `binding`: that of the connection. Raises HandshakeError."""
        if challenge[:1] == _STATUS.pack(_REFUSED):
            # A stranger may have written the text.
            text = challenge[1 : 1 + _MAX_REASON_BYTES].decode("ascii", "replace")
            is_transient = text in (FORMER_EPOCH, _OTHER_EPOCH)
            raise HandshakeError("the peer has refused", is_transient=is_transient, detail=text)
        if challenge[:1] != _STATUS.pack(_ACCEPTED) or len(challenge) != 1 + NONCE_BYTES + PROOF_BYTES:
            raise HandshakeError("malformed handshake")
        nonce, proof = challenge[1 : 1 + NONCE_BYTES], challenge[1 + NONCE_BYTES :]
        if not compare_digest(proof, _proof(self._secret, _RESPONDER, self.hello, nonce + binding)):
            raise HandshakeError("the peer does not know the cluster's secret")
        return _proof(self._secret, _INITIATOR, self.hello, nonce + binding)


class ResponderHandshake:
    """The side that has accepted the connection. `nonce` must be random. `binding`: that of the connection."""

    def __init__(self, identity: BrokerIdentity, nonce: bytes, binding: bytes = b"") -> None:
        self._identity = identity
        self._nonce = nonce
        self._challenge = nonce + binding
        self._frame = b""
        self.hello: Hello | None = None

    def challenge(self, frame: bytes) -> bytes:
        """Check the HELLO, and return the CHALLENGE. Raises HandshakeError."""
        hello = Hello.decode(frame)
        identity = self._identity
        if hello.cluster_id != identity.cluster_id:
            raise HandshakeError("a broker of another cluster", cluster=hello.cluster_id, broker=hello.initiator[0])
        own = identity.broker_id, identity.broker_epoch
        if hello.responder[0] != own[0] or hello.initiator[0] == own[0]:
            raise HandshakeError("another broker is meant", broker=hello.initiator[0], meant=hello.responder[0])
        if hello.responder != own:
            raise HandshakeError(
                _OTHER_EPOCH, is_transient=True, broker=hello.initiator[0], meant=hello.responder[1], epoch=own[1],
            )  # fmt: skip
        self._frame, self.hello = frame, hello
        return _STATUS.pack(_ACCEPTED) + self._nonce + _proof(self._identity.secret, _RESPONDER, frame, self._challenge)

    def verify(self, proof: bytes) -> Hello:
        """Check the PROOF, and return the initiator's HELLO. Raises HandshakeError."""
        assert self.hello is not None
        if not compare_digest(proof, _proof(self._identity.secret, _INITIATOR, self._frame, self._challenge)):
            raise HandshakeError("the peer does not know the cluster's secret", broker=self.hello.initiator[0])
        return self.hello


def refusal(reason: str) -> bytes:
    """Return the message with the reason why the initiator was refused."""
    return _STATUS.pack(_REFUSED) + reason.encode("ascii", "replace")[:_MAX_REASON_BYTES]


def _proof(secret: bytes, role: bytes, hello: bytes, challenge: bytes) -> bytes:
    """`challenge`: the responder's nonce, and the channel binding."""
    return digest(secret, role + hello + challenge, "sha256")
