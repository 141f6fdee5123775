"""What the broker's benchmark is made of: load on a broker, and the figures that come of it."""
