"""Requests of operators to any Kafka cluster: topics, groups, configs, ACLs, users, quotas, nodes, partitions, transactions."""
