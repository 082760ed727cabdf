"""What changes while a node runs: certificates, and the epoch that it is in."""
