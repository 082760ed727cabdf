"""The audit: every attack on every mode, the verdict on it, and the page that shows it."""
