"""Groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup as decisions (pure)."""
