"""Jobs of the pipeline that are killed, on this machine and on a Spark cluster: what must be there once is there once."""
