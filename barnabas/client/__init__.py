"""What every part of the face needs to talk to a Kafka cluster: settings, connections, errors."""
