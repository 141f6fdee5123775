"""The verbs of the command, with running clusters."""
