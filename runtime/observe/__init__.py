"""What a node lets others see: logs, metrics, events, and whether it is well."""
