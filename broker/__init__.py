"""Layer 4, the daemon: the only layer with an event loop, sockets, clocks and threads."""
