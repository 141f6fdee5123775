"""What verbs and jobs need to talk to a Kafka cluster: settings, connections, errors."""
