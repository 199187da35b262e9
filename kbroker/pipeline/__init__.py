"""The data pipeline on Spark: archive topics to Parquet, verify and replay them, aggregate them live.

Reaches brokers as clients do: through Spark's Kafka connector, and kafka-python for what the connector does not ask.
"""
