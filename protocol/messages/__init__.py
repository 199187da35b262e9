"""Every message of the wire as rows: one file an API, named as its handler in kbroker/api."""
