"""What the controller stores about clients: ACLs, quotas and SCRAM credentials."""
