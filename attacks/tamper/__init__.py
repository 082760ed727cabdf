"""Misbehaving hops, silos and aggregators, and who is named for it."""
