"""Sources of Spark that read a broker's files; a worker needs this package, numpy and pyarrow, and nothing else."""
