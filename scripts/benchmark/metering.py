"""The processor time that a server uses for a case, measured together with the case's figures."""

from typing import NamedTuple

from scripts.benchmark.peers import Peer


class Measured(NamedTuple):
    """One figure of one server in one round.

    `processor_time`: what the server used meanwhile, in `processor_unit`; None if the case does not measure it.
    """

    value: float
    processor_time: float | None = None
    processor_unit: str = ""


class Work(NamedTuple):
    """The work of a run. A figure in `unit` is the server's processor time in seconds, divided by `amount`."""

    amount: float
    unit: str


def per_record(records: int) -> Work:
    return Work(records / 1e6, "us/record")


def per_transaction(transactions: int) -> Work:
    return Work(transactions / 1e6, "us/txn")


def per_megabyte(megabytes: float) -> Work:
    return Work(megabytes / 1e3, "ms/MB")


# The whole run. It has the same length and the same load with each server.
RUN = Work(1, "s")


class Meter:
    """Measures the processor time of a server from its creation on."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._before = peer.processor_time().total

    def figures(self, work: Work, *values: float) -> tuple[Measured, ...]:
        """Return the figures of a run that ends now."""
        used = (self._peer.processor_time().total - self._before) / work.amount
        return tuple(Measured(value, used, work.unit) for value in values)

    def figure(self, work: Work, value: float) -> Measured:
        """Return the only figure of a run that ends now."""
        return self.figures(work, value)[0]
