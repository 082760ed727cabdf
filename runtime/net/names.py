"""Names that travel with calls. A probe reads them too, so nothing else is loaded here."""

INSECURE_NAME = "silomix-node"
"""Metadata that names the caller in a federation without TLS, where nobody can prove anything."""
ALIVE_PATH = "/livez"
"""Where a probe asks, beside the metrics, whether a node's event loop turns."""
READY_PATH = "/readyz"
"""Where it asks whether the node takes calls."""
