"""The process: event loop, resource limits, timer, watchdog, log levels."""
