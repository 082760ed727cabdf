"""A federation written out for containers, and what it takes of each host."""
