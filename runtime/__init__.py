"""The runtime: a pure core, and the processes round it."""
