"""`kbroker archive run`: Spark jobs from topics to files, and one commit of each batch to the table of each topic."""
