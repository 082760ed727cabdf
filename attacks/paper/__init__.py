"""The paper's experiments, tables and figures: repeated, and set beside its own numbers."""
