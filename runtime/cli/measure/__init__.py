"""Commands that measure: what a parameter costs, and how fast this machine is."""
