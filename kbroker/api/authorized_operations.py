"""The operations that a client may perform, as a bit set of Kafka's AclOperation numbers.

Without an authorizer a client may perform every operation. As in Apache Kafka 4.3.1, the bits of all operations that
apply to the type of resource are then set.
"""

NOT_REQUESTED = -(2**31)

# Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs.
TOPIC_OPERATIONS = 3576
# Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite.
CLUSTER_OPERATIONS = 8096
