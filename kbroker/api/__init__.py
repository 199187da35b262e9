"""One file an API: kNN_name.py answers the requests that protocol/messages/kNN_name.py declares."""
