"""The operations that a client may do, as bits of Kafka's AclOperation numbers.

Without an authorizer a client may do every operation. The bits are those that Apache Kafka 4.3.1 returns then: all
operations that apply to the kind of resource.
"""

NOT_REQUESTED = -(2**31)

# Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs.
TOPIC_OPERATIONS = 3576
# Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite.
CLUSTER_OPERATIONS = 8096
