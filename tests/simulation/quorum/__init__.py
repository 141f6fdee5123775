"""The metadata quorum in one process: a seed decides the network, the disks, crashes and time."""
