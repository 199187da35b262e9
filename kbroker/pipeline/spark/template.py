"""A job to copy: what `kbroker pipeline template` prints, and `kbroker pipeline run` runs as it is."""

TEXT = '''\
"""How many records a topic gets in each minute, by key, as a topic of its own.

    kbroker pipeline run job.py -- SOURCE TARGET CHECKPOINT

It does what has come since the last time, and ends. Started again it goes on from its checkpoint; to let it run on,
replace availableNow=True by processingTime="10 seconds".
"""

import os
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

if len(sys.argv) != 4:
    sys.exit("usage: kbroker pipeline run job.py -- SOURCE TARGET CHECKPOINT")
source, target, checkpoint = sys.argv[1:]

# `kbroker pipeline run` has the session ready, with the Kafka connector, and names the broker.
spark = SparkSession.builder.getOrCreate()
bootstrap = os.environ["KBROKER_BOOTSTRAP"]

# Columns: key, value, topic, partition, offset, timestamp, timestampType. Where values are JSON, get at a field with
# F.try_variant_get(F.try_parse_json(F.col("value").cast("string")), "$.field", "double").
records = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .load()
)

# A window stays open for an hour after the latest record; what comes later than that is left out of it.
counts = (
    records.withWatermark("timestamp", "1 hour")
    .groupBy(F.window("timestamp", "1 minute"), F.col("key").cast("string").alias("key"))
    .agg(F.count("*").alias("records"), F.sum(F.length("value")).alias("bytes"))
)

# Update mode: each batch sends the windows that it changed. The key names window and group, so the last record of a key
# is right, and sending one twice does no harm. A target with cleanup.policy=compact keeps just those.
rows = counts.select(
    F.to_json(F.struct(F.col("window.start").alias("start"), "key")).alias("key"),
    F.to_json(F.struct("window.start", "window.end", "key", "records", "bytes")).alias("value"),
)
query = (
    rows.writeStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", target)
    .option("checkpointLocation", checkpoint)
    .outputMode("update")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
done = sum(batch.numInputRows for batch in query.recentProgress)
print(f"{done} records of {source} are counted in {target}")
'''
