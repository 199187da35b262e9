"""The coordination interface on a ZooKeeper ensemble, through kazoo. Imported only if zookeeper.connect is set."""
