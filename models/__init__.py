"""What silos train: models, their data, and whole federations simulated."""

LOGGER = "silomix.models"
"""The log of what tasks say of their models."""
