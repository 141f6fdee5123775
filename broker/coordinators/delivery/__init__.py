"""Delivery of schedule topics: each leader of a schedule partition appends due records to the target topic."""
