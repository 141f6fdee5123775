"""The verbs of the command, against brokers."""
