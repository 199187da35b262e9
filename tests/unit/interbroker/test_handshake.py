"""The handshake of two brokers as bytes, and what it does not accept."""

from random import Random

import pytest

from kbroker.interbroker.handshake import (
    MAX_HANDSHAKE_BYTES,
    BrokerIdentity,
    HandshakeError,
    Hello,
    InitiatorHandshake,
    ResponderHandshake,
    refusal,
)
from tests.sampling import third_of

SECRET = bytes(range(32))
CLUSTER = "rTfKmo8hSJq2Yd1uQk3bWg"
NONCE, OTHER_NONCE = b"n" * 32, b"o" * 32


def identity(broker_id: int, epoch: int, secret: bytes = SECRET, cluster_id: str = CLUSTER) -> BrokerIdentity:
    return BrokerIdentity(cluster_id, secret, broker_id, epoch)


def initiator(
    own: BrokerIdentity | None = None, to: tuple[int, int] = (2, 22), nonce: bytes = NONCE
) -> InitiatorHandshake:
    return InitiatorHandshake(own or identity(1, 11), to, 1, nonce)


def responder(own: BrokerIdentity | None = None, nonce: bytes = OTHER_NONCE) -> ResponderHandshake:
    return ResponderHandshake(own or identity(2, 22), nonce)


def test_both_sides_learn_the_identity_of_the_other() -> None:
    one, two = initiator(), responder()
    hello = two.verify(one.answer(two.challenge(one.hello)))
    assert hello == Hello(NONCE, (1, 11), (2, 22), 1, CLUSTER)


def test_messages_fit_into_the_frames_before_the_handshake() -> None:
    one, two = initiator(identity(1, 11, cluster_id="c" * 255)), responder(identity(2, 22, cluster_id="c" * 255))
    challenge = two.challenge(one.hello)
    assert len(one.hello) < MAX_HANDSHAKE_BYTES
    assert len(challenge) < MAX_HANDSHAKE_BYTES
    assert len(refusal("r" * 5000)) < MAX_HANDSHAKE_BYTES


@pytest.mark.parametrize(
    ("own", "to", "reason", "is_transient"),
    [
        (identity(1, 11, cluster_id="another"), (2, 22), "a broker of another cluster", False),
        (identity(1, 11), (3, 22), "another broker is meant", False),
        (identity(2, 11), (2, 22), "another broker is meant", False),
        (identity(1, 11), (2, 21), "another epoch of this broker is meant", True),
        (identity(1, 11), (2, 23), "another epoch of this broker is meant", True),
    ],
)
def test_the_responder_refuses(own: BrokerIdentity, to: tuple[int, int], reason: str, is_transient: bool) -> None:
    with pytest.raises(HandshakeError) as failure:
        responder().challenge(initiator(own, to).hello)
    assert failure.value.reason == reason
    assert failure.value.is_transient == is_transient
    with pytest.raises(HandshakeError, match="the peer has refused") as refused:
        initiator(own, to).answer(refusal(reason))
    assert refused.value.is_transient == is_transient


def test_the_initiator_proves_nothing_to_a_stranger() -> None:
    one, stranger = initiator(), responder(identity(2, 22, secret=b"guess"))
    with pytest.raises(HandshakeError, match="does not know the cluster's secret"):
        one.answer(stranger.challenge(one.hello))


def test_the_responder_accepts_no_other_secret() -> None:
    two = responder()
    stranger, helper = initiator(identity(1, 11, secret=b"guess")), responder(identity(2, 22, secret=b"guess"))
    two.challenge(stranger.hello)
    with pytest.raises(HandshakeError, match="does not know the cluster's secret"):
        two.verify(stranger.answer(helper.challenge(stranger.hello)))


def test_a_recorded_handshake_is_worthless() -> None:
    one, two = initiator(), responder()
    proof = one.answer(two.challenge(one.hello))
    again = responder(nonce=b"p" * 32)
    again.challenge(one.hello)
    with pytest.raises(HandshakeError):
        again.verify(proof)


def test_a_proof_cannot_be_sent_back() -> None:
    """A stranger that opens a connection to each of two brokers gets no proof that the other accepts."""
    one, two = initiator(), responder()
    challenge = two.challenge(one.hello)
    with pytest.raises(HandshakeError):
        two.verify(challenge[-32:])


def test_the_refusal_is_a_reason_for_the_initiator() -> None:
    with pytest.raises(HandshakeError) as failure:
        initiator().answer(refusal("another epoch of this broker is meant"))
    assert failure.value.detail == {"detail": "another epoch of this broker is meant"}


@pytest.mark.parametrize("seed", third_of(range(50)))
def test_no_other_bytes_are_accepted(seed: int) -> None:
    """Each message in turn is cut, extended, or changed in a byte, or is random."""
    random = Random(seed)

    def damage(message: bytes) -> bytes:
        kind = random.randrange(4)
        if kind == 0:
            return message[: random.randrange(len(message))]
        if kind == 1:
            return message + random.randbytes(random.randint(1, 200))
        if kind == 2:
            return random.randbytes(random.randint(1, MAX_HANDSHAKE_BYTES))
        at = random.randrange(len(message))
        return message[:at] + bytes([message[at] ^ random.randint(1, 255)]) + message[at + 1 :]

    def shake_hands(damaged: int) -> None:
        one, two = initiator(), responder()
        challenge = two.challenge(damage(one.hello) if damaged == 0 else one.hello)
        proof = one.answer(damage(challenge) if damaged == 1 else challenge)
        two.verify(damage(proof) if damaged == 2 else proof)

    for damaged in range(3):
        with pytest.raises(HandshakeError):
            shake_hands(damaged)
