"""The archive job: topics copied into Parquet files or lake tables, exactly once."""
