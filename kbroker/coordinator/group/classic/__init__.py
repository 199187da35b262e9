"""Consumer groups of the classic protocol: JoinGroup, SyncGroup, Heartbeat and LeaveGroup as pure decisions."""
