"""The group coordinator and the transaction coordinator: state that is kept in internal topics.

runtime/ appends, replays and loads records for both; group/ and transaction/ make the decisions.
"""
