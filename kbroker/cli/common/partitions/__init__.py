"""What commands show of partitions: their problems, and offsets as brokers report them."""
