"""How long things take under faults."""
