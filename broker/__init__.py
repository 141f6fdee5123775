"""Floor 4: the daemon; the only floor that knows an event loop."""
