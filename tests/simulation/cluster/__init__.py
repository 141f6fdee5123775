"""A whole cluster in one process: a seed decides clocks, the network, the disks, crashes and what clients write."""
