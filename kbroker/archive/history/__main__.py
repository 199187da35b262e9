"""`python -m kbroker.archive.history`: serves the broker that has started it, until its standard input ends."""

from kbroker.archive.history.server import main

if __name__ == "__main__":
    main()
