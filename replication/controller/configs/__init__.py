"""Controller decisions about configurations, features, quotas and SCRAM credentials."""
