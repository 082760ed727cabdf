"""Names that travel with calls. A probe reads them too, so nothing else is loaded here."""

INSECURE_NAME = "silomix-node"
"""Metadata that names the caller in a federation without TLS, where nobody can prove anything."""
