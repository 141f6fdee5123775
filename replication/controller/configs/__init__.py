"""Decisions about configurations, features, quotas and SCRAM credentials."""
