"""The adversary: what a curious server can do with what it captured."""
