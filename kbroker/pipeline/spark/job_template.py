"""The example job that `kbroker pipeline template` prints and `kbroker pipeline run` can run."""

JOB_TEMPLATE = '''\
"""Count the records of a topic by minute and key, and produce the counts to another topic.

    kbroker pipeline run job.py -- SOURCE TARGET CHECKPOINT

The job processes the records since its last run, which its checkpoint remembers, and ends. To run it continuously,
replace availableNow=True with processingTime="10 seconds".
"""

import json
import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

if len(sys.argv) != 4:
    sys.exit("usage: kbroker pipeline run job.py -- SOURCE TARGET CHECKPOINT")
source, target, checkpoint = sys.argv[1:]

# `kbroker pipeline run` provides the session with the Kafka connector, and how to connect to the brokers.
spark = SparkSession.builder.getOrCreate()
kafka = json.loads(os.environ["KBROKER_KAFKA_OPTIONS"])

# Columns: key, value, topic, partition, offset, timestamp, timestampType. A field of a JSON value is
# F.try_variant_get(F.try_parse_json(F.col("value").cast("string")), "$.field", "double").
records = (
    spark.readStream.format("kafka")
    .options(**kafka)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .load()
)

# A window closes an hour after the latest record; records that arrive later are not counted.
counts = (
    records.withWatermark("timestamp", "1 hour")
    .groupBy(F.window("timestamp", "1 minute"), F.col("key").cast("string").alias("key"))
    .agg(F.count("*").alias("records"), F.sum(F.length("value")).alias("bytes"))
)

# Update mode: each batch produces the windows that it changed. The key is the window and the group, so the last record
# of a key is the current count, and duplicates do no harm. With cleanup.policy=compact the topic keeps only those.
rows = counts.select(
    F.to_json(F.struct(F.col("window.start").alias("start"), "key")).alias("key"),
    F.to_json(F.struct("window.start", "window.end", "key", "records", "bytes")).alias("value"),
)
query = (
    rows.writeStream.format("kafka")
    .options(**kafka)
    .option("topic", target)
    .option("checkpointLocation", checkpoint)
    .outputMode("update")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
count = sum(batch.numInputRows for batch in query.recentProgress)
print(f"counted {count} records of {source} in {target}")
'''
