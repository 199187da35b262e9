"""`kbroker archive run`: a Spark streaming query from topics to commits."""
