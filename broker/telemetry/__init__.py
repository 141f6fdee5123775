"""Client metrics (KIP-714): subscriptions, storage, the Prometheus page."""
