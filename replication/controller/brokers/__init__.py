"""Decisions about brokers: registration, heartbeats, fencing."""
