"""The protocol without a network: no asyncio, no clock, no files, no randomness of its own.

plan      which moduli, and every size that follows
residue   floats <-> residues, sums, the remainder theorem
packing   residues <-> bytes
codec     a model's tensors <-> chunks of packed planes
masks     seeds, sealing, expansion to uniform residues
tamper    the check that finds any change, and who made it
digest    one way to hash what two nodes must agree on
errors    faults, with the blame in the type
kernels   how the numeric loops are compiled
"""
