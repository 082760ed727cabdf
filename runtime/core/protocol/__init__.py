"""Who says what to whom: the federation, its messages and their rules, and a state machine for each role."""
