"""What only the aggregator does beside rounds: it recovers, and says what keeps it."""
