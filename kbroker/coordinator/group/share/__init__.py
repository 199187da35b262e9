"""Share groups (KIP-932): members share partitions, whose state the share coordinator keeps."""
