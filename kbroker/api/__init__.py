"""One file per API: kNN_name.py handles the requests that protocol/messages/kNN_name.py declares."""
