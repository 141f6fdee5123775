"""Results: rows and samples, tables, plots."""
