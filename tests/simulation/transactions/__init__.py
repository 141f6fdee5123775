"""Lives of a transactional id on a broker without sockets that is killed between any two changes of its files."""
