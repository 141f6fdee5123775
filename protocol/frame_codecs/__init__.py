"""Codecs that decode a request directly from its frame, and encode its response, without message objects."""
