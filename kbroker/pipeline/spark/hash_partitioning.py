"""Column values with which `repartition` puts rows into chosen Spark partitions."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def partition_keys(spark: "SparkSession", count: int) -> list[int]:
    """Return for each of `count` Spark partitions a bigint that hash partitioning assigns to it.

    `repartition(count, column)` of a column with these numbers puts the rows of each number into a separate partition,
    and so into a separate task. Runs a Spark job.
    """
    numbers = spark.range(30 * count + 100)  # the probability that they miss a partition is count / 10^13
    rows = numbers.selectExpr(f"pmod(hash(id), {count}) AS part", "id").groupBy("part").agg({"id": "min"}).collect()
    keys = {row["part"]: row["min(id)"] for row in rows}
    return [keys.get(part, part) for part in range(count)]
