"""Tools that look at a data directory without a broker: one command each."""
