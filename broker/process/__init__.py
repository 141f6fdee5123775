"""The process: event loop, timer, watchdog, resource limits, log levels."""
