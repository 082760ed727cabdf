"""What silos train: models, their data, and whole federations simulated."""
