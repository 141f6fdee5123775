"""One node: its log directories at startup, formatting, KRaft runtime and scheduled tasks."""
