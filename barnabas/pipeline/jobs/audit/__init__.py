"""The audit job: an archive compared with its topics, record by record."""
