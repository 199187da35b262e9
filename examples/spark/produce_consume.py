"""Write and read ten records with Spark.

Usage: spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0 produce_consume.py [HOST:PORT] [TOPIC]
`kbroker pipeline run produce_consume.py` needs no --packages.
"""

import sys

from pyspark.sql import SparkSession

bootstrap = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
topic = sys.argv[2] if len(sys.argv) > 2 else "examples"

spark = SparkSession.builder.appName("produce-consume").getOrCreate()

records = spark.range(10).selectExpr("concat('key-', id % 3) AS key", "concat('value ', id) AS value")
records.write.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("topic", topic).save()

rows = (
    spark.read.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", topic)
    .load()
    .selectExpr("partition", "offset", "CAST(key AS STRING)", "CAST(value AS STRING)")
)
for row in rows.collect():
    print(f"{row.partition}:{row.offset} {row.key} = {row.value}")
