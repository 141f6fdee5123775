"""The transaction coordinator, transaction markers and verification (KIP-890)."""
