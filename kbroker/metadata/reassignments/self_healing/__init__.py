"""Self-healing: the controller rebuilds the replicas of a broker that stays away, and gives replicas back later."""
