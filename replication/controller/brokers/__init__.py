"""Controller decisions about brokers: registration, heartbeats, fencing."""
