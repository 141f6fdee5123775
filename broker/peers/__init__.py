"""Connections to other nodes: controllers, brokers, leaders."""
