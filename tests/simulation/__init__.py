"""The life of a log manager on a simulated disk, from a seed (docs/simulation.md)."""
