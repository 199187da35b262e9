"""A server of the ensemble: it has the transactions of the leader late, and the watches of its connections."""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kbroker.coordination.data_tree import DataTree
from kbroker.coordination.interface import Op, WatchManager
from kbroker.simulation.coordination.messages import SessionConnection, WatchNotification
from kbroker.simulation.network.channel import DelayedChannel


class Transaction(NamedTuple):
    """Operations that the leader has applied, with the session that has sent them."""

    ops: Sequence[Op]
    session: int


class Server:
    """Applies the leader's transactions in their order, each after a delay.

    `transactions` is the leader's log, `applied` the number of its transactions that are in `tree`, which the server
    starts with. `lag_s` is called
    for the delay of a transaction, in seconds. A connection receives the notification of a watch before any response
    that was produced after the change.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transactions: Sequence[Transaction],
        lag_s: Callable[[], float],
        tree: DataTree,
    ) -> None:
        self.tree = tree
        self.watches: WatchManager[SessionConnection] = WatchManager()
        self.applied = 0
        self._transactions = transactions
        # The numbers of transactions, from 1.
        self._commits: DelayedChannel[int] = DelayedChannel(
            loop, lambda number: lag_s(), lambda: True, self.apply_up_to
        )

    def commit(self, number: int) -> None:
        """Apply this transaction later."""
        self._commits.send(number)

    def apply_up_to(self, number: int) -> None:
        """Apply the transactions up to this one now, and fire their watches."""
        while self.applied < number:
            ops, session = self._transactions[self.applied]
            self.applied += 1
            for connection, event in self.watches.fire(self.tree.apply(ops, session).events):
                connection.responses.send(WatchNotification(event, self.applied))

    def stop(self) -> None:
        """Apply nothing more: another server has taken the place of this one."""
        self._commits.close()

    def forget(self, connection: SessionConnection) -> None:
        """Remove the watches of a connection that is lost."""
        self.watches.remove(lambda other: other is connection)
