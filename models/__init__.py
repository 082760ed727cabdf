"""What silos train: models, data and the task interface."""
