"""Compaction: of records with the same key only the last one stays, offsets never change."""
