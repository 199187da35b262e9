"""ACLs: what principals may do (KIP-11, KIP-290), decided as by Kafka's StandardAuthorizer."""
