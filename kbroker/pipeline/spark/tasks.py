"""Which of Spark's tasks a row goes to, where that is to be chosen."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def task_keys(spark: "SparkSession", count: int) -> list[int]:
    """For each of so many tasks a number (bigint) that Spark's hash partitioning sends to it, as Spark itself says:
    `repartition(count, column)` of a column of these numbers gives each of them a task of its own."""
    numbers = spark.range(30 * count + 100)  # one of `count` is missed by all of them once in 10^13 / count times
    found = numbers.selectExpr(f"pmod(hash(id), {count}) AS task", "id").groupBy("task").agg({"id": "min"}).collect()
    numbers_of = {row["task"]: row["min(id)"] for row in found}
    return [numbers_of.get(task, task) for task in range(count)]
