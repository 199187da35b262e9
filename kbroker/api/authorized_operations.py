"""What a client may do, as bits of Kafka's AclOperation numbers. Without an authorizer everybody may do
everything.

The bits are those that Apache Kafka 4.3.1 answers without an authorizer: only operations that make sense
for the kind of resource.
"""

NOT_ASKED = -(2**31)

# Read, Write, Create, Delete, Alter, Describe, DescribeConfigs, AlterConfigs.
TOPIC_OPERATIONS = 3576
# Create, Alter, Describe, ClusterAction, DescribeConfigs, AlterConfigs, IdempotentWrite.
CLUSTER_OPERATIONS = 8096
