"""What a node saw, on disk: captures, and the evidence that an aggregator's holds."""
