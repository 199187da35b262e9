"""`kbroker topics alter --replication-factor`."""

from collections.abc import Sequence

from kbroker.cli.cluster.plans.run_plan import run_plan
from kbroker.cli.common.formatting import count_text
from kbroker.cli.common.plan_options import PlanOptions
from kbroker.metadata.reassignments.placement.drain import change_replication_factor


def alter_replication_factor(bootstrap: str, topics: Sequence[str], factor: int, options: PlanOptions) -> None:
    """Give all partitions of some topics this number of replicas, by a plan. Raises CliError if it is refused."""
    subject = topics[0] if len(topics) == 1 else count_text(len(topics), "topic")
    run_plan(
        bootstrap,
        f"replication factor {factor} of {subject}",
        lambda layout: change_replication_factor(layout, topics, factor),
        options,
    )
