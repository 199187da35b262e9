"""A redrive in a thread of its own, until it ends or is cancelled.

A redrive is tried first: then it counts what it would send. It commits its progress with the records, so one that was
cancelled, or ended with the console, continues where it stopped.
"""

from collections import Counter
from collections.abc import Mapping
from threading import Thread

from kbroker.cli.common.client import CLIENT_ERRORS, client_error_text, partition_leaders
from kbroker.cli.common.deletion import record_bounds
from kbroker.cli.common.errors import CliError
from kbroker.cli.dlq.app import require_dead_letter_topic
from kbroker.cli.dlq.redrive import LetterFilter, Redrive
from kbroker.client.requests import MAX_VERSIONS
from kbroker.client.transactions import LAST_VERSIONS
from kbroker.config.queue_configs import VIEW_OF
from kbroker.console.kafka import connect
from kbroker.console.settings import ConsoleSettings


class RedriveCancelled(Exception):
    """The user has cancelled a redrive."""


class RedriveJob:
    """A redrive. `total`: the records of the topic; `done`: those that were read.

    `counts`: what became of the records, when it has ended; `error`: why it has not. `is_cancelled`: it ends after the
    batch that is being sent.
    """

    def __init__(
        self,
        settings: ConsoleSettings,
        topic: str,
        selection: LetterFilter,
        fields: Mapping[str, str],
        *,
        rate: int | None,
        is_trial: bool,
    ) -> None:
        """`fields`: of the form, which has the target as `to`, and `again`. `rate`: records per second at most."""
        self.fields, self.is_trial = fields, is_trial
        self.total = self.done = 0
        self.counts: Counter[str] = Counter()
        self.error: str | None = None
        self.is_cancelled = False
        self._settings, self._topic, self._selection, self._rate = settings, topic, selection, rate
        self._thread = Thread(target=self._run, name="redrive", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            with connect(self._settings, {**MAX_VERSIONS, **LAST_VERSIONS}) as cluster:
                configs = require_dead_letter_topic(cluster, self._topic)
                target = self.fields.get("to")
                if target is not None:
                    partition_leaders(cluster, [target])  # raises for a missing one
                self.total = sum(end - begin for begin, end in record_bounds(cluster, self._topic).values())
                sources = {name: source for name, values in configs.items() if (source := values.get(VIEW_OF))}
                work = Redrive(cluster, self._topic, self._selection, target, sources=sources)
                self.counts = work.run(
                    rate=self._rate, again="again" in self.fields, dry_run=self.is_trial, progress=self._advance
                )
        except RedriveCancelled:
            self.error = "It was cancelled. The next redrive with the same selection continues here."
        except CliError as error:
            self.error = str(error)
        except CLIENT_ERRORS as error:
            self.error = client_error_text(error)

    def _advance(self, records: int) -> None:
        self.done += records
        if self.is_cancelled:
            raise RedriveCancelled
