"""The log of one partition: appends, reads, producer state, leader epochs, recovery."""
