"""What was measured, kept and shown: rows and samples, tables, plots."""
