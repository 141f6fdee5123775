"""Kills jobs of the pipeline, on this machine and on a Spark cluster, and checks that every record exists exactly once."""
