"""The jobs, a module each: what it is told, what it does, what it reports."""
