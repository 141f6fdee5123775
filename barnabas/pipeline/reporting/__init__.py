"""What a job shows while it runs: progress, messages, metrics files."""
