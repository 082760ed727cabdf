"""Adversaries that do not keep to the protocol: a lying aggregator, lying hops, hostile silos, at live nodes."""
