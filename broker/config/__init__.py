"""Settings of the broker: definitions, files, environment, listeners, dynamic configs."""
