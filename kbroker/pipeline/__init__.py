"""The data pipeline on Spark: archive topics to Parquet, verify and replay them, aggregate them live.

It connects to brokers as any client does: with Spark's Kafka connector, and with kbroker.client for other requests.
"""
