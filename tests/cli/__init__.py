"""The verbs as processes, with running clusters."""
