"""Handlers of the controller listener: controller APIs, Raft and envelopes."""
