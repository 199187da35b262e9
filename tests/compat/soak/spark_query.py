"""A program: a streaming query from a topic to Parquet files, until a line on standard input tells it to finish."""

import select
import sys
from pathlib import Path

from kbroker.pipeline.spark.session import spark_session

# Clients wait as long as request.timeout.ms for a broker that does not respond. The admin client of Spark's driver
# waits for all of default.api.timeout.ms if it lists offsets while Metadata still names a killed leader, with Kafka too
# ("Timed out waiting for a node assignment"); then the driver tries again.
TIMEOUTS = {"request.timeout.ms": 6000, "default.api.timeout.ms": 15_000, "metadata.max.age.ms": 2000}


def main(bootstrap: str, topic: str, directory: Path) -> None:
    # The query is one task for each partition; a task that has failed is tried again, as on a cluster.
    conf = {"spark.driver.memory": "600m", "spark.ui.enabled": "false", "spark.log.level": "ERROR"}
    with spark_session("soak", master="local[2,8]", conf=conf) as spark:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap)
        reader = reader.option("subscribe", topic).option("startingOffsets", "earliest").option("failOnDataLoss", True)
        for name, value in TIMEOUTS.items():
            reader = reader.option(f"kafka.{name}", str(value))
        rows = reader.load().selectExpr("partition", "offset", "CAST(value AS STRING) AS value")
        files = str(directory / "files")
        writer = rows.writeStream.format("parquet").option("path", files)
        writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
        query = writer.trigger(processingTime="2 seconds").start()
        copied, last = 0, -1
        while not select.select([sys.stdin], [], [], 1.0)[0]:
            if not query.isActive:
                raise SystemExit(f"the query has ended: {query.exception()}")
            for progress in query.recentProgress:
                if progress["batchId"] > last:
                    copied, last = copied + progress["numInputRows"], progress["batchId"]
            print(f"rows {copied}", flush=True)
        query.processAllAvailable()
        query.stop()
        with (directory / "result").open("w") as result:
            for row in spark.read.parquet(files).toLocalIterator():
                print(row.partition, row.offset, row.value, file=result)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
