"""The aggregate job: measures over windows of event time."""
