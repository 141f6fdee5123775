"""Client metrics (KIP-714): client instances and their subscriptions, and the metrics that they reported."""
