"""Verbs that show and change a cluster: topics, groups, configs, acls, users, quotas, nodes, partitions, transactions."""
