"""Record APIs: Produce, Fetch, ListOffsets, DeleteRecords, log directories."""
