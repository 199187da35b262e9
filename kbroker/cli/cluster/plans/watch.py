"""Waits for the end of a plan, and shows how far it is."""

import time
from collections.abc import Mapping
from typing import Any

from kbroker.cli.cluster.log_dirs import describe_log_dirs
from kbroker.cli.cluster.plans.plan_description import DONE, MOVING, CopiedBytes, PlanDescription, copied_bytes
from kbroker.cli.cluster.plans.plan_status import plan_name, print_awaited
from kbroker.cli.cluster.plans.requests import PlanRequests
from kbroker.cli.common.client import read_again
from kbroker.cli.common.errors import CliError
from kbroker.cli.common.output import print_note
from kbroker.cli.common.partitions.list_offsets import Partition
from kbroker.cli.common.progress import ProgressBar
from kbroker.cli.common.stop_signals import Interrupts

# The controller is asked less often about a large plan, whose description is large.
EVERY_S, MOVES_PER_S = 0.5, 2000
# How often it is asked which brokers are away.
AWAY_EVERY_S = 5.0

HOW_TO_GO_ON = "to watch it: kbroker brokers plan --watch; to cancel it: kbroker brokers plan --cancel"


class PlanWatch:
    """Watches plans through an admin client. `sizes`: the bytes of one replica, by partition."""

    def __init__(self, client: Any, plans: PlanRequests, sizes: Mapping[Partition, int]) -> None:
        self._client = client
        self._plans = plans
        self._sizes = sizes

    def copied(self, plan: PlanDescription) -> CopiedBytes:
        """Return how far a plan is. Brokers that do not respond count as if they had copied nothing yet."""
        moving = plan.in_state(MOVING)
        targets = {broker for move in moving for broker in move.added}
        found = describe_log_dirs(self._client, sorted(targets), [move.key for move in moving]) if targets else {}
        return copied_bytes(plan, self._sizes, {broker: dirs.sizes for broker, dirs in found.items()})

    def wait_for_end(self, plan: PlanDescription) -> PlanDescription:
        """Return the plan when it has ended. When the user interrupts that, it continues to run."""
        try:
            with Interrupts() as interrupts:
                return self._wait_for_end(plan, interrupts)
        except KeyboardInterrupt:
            print_note(f"{plan_name(plan)} continues; {HOW_TO_GO_ON}")
            raise

    def _wait_for_end(self, plan: PlanDescription, interrupts: Interrupts) -> PlanDescription:
        total = self.copied(plan).total
        plan_id, current = plan.plan_id, plan
        awaited: list[int] = []
        away_at = time.monotonic() + AWAY_EVERY_S
        with ProgressBar(plan_name(plan), total or len(plan.moves), shows_bytes=total > 0) as progress:
            while current.is_running:
                interrupts.check()
                time.sleep(EVERY_S + len(plan.moves) / MOVES_PER_S)
                found = self._plans.describe()
                if found is None or found.plan_id != plan_id:
                    raise CliError(f"{plan_name(plan)} has ended, and another plan was begun since")
                current = found
                if current.is_running and time.monotonic() >= away_at:
                    before, awaited = awaited, current.awaited(self._away())
                    print_awaited(broker for broker in awaited if broker not in before)
                    away_at = time.monotonic() + AWAY_EVERY_S
                if progress.may_be_shown:
                    progress.advance_to(self.copied(current).copied if total else current.count(DONE))
        return current

    def _away(self) -> list[int]:
        """Return the brokers that are away; none if no broker responds."""
        from kafka.errors import KafkaError

        try:
            brokers = read_again(self._client.describe_cluster)["brokers"]
        except KafkaError:
            return []
        return [broker["broker_id"] for broker in brokers if broker.get("is_fenced")]
