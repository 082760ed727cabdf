"""Faults on purpose: a federation in memory under a seeded schedule of them, and real processes that are killed."""
