"""The server side of SASL."""
