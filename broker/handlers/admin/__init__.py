"""Handlers of administration: topics, configurations, metadata, quotas."""
