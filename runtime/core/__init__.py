"""The protocol without a network: no asyncio, no clock, no files, no randomness of its own.

numbers   what travels: moduli, residues, packed planes, masks, and what all of it costs
learning  what becomes of updates: a silo's own, the server's rules, noise and its account
protocol  who says what to whom, and the state machines of the three roles
chain     the rule of the chain, and the numbers that follow from it
digest    one way to hash what two nodes must agree on
errors    faults, with the blame in the type
"""
