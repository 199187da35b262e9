"""Consumer groups of the classic protocol, pure: time comes as an argument, answers leave through callbacks.

`group.py` is what a group is; `rebalance.py`, `joining.py`, `syncing.py` and `leaving.py` are what can
happen to it. What must survive a restart is returned as a record to append; `applying.py` takes it in once
it is committed, and when a broker loads its groups. Offsets are in `offsets.py` and `commits.py`.
"""
