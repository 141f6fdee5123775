"""Message classes, one per request, response and stored record, grouped by subject."""
