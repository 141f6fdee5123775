"""One function per API, grouped by subject; each module exports its routes."""
