"""The tamper check on the wire."""
