"""Client quotas: how fast users, client ids and addresses may send requests, and when connections have to wait."""
