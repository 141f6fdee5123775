"""Handlers of records: Produce, Fetch, ListOffsets, DeleteRecords, log directories."""
