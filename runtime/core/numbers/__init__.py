"""Numbers as they travel: a model's values as residues, packed, masked, added up, and read back.

plan      which moduli, and every size that follows
costs     what a policy costs on the wire
residue   floats <-> residues, sums, the remainder theorem
packing   residues <-> bytes
slices    arithmetic on packed planes
codec     a model's tensors <-> chunks of packed planes
baseline  the paper's literal modes, to compare with
masks     seeds, sealing, expansion to uniform residues
fold      the check's linear forms, in one pass over a vector
tamper    the check that finds any change, and who made it
traps     the paper's proofs at a few parameters
check_costs  what these two cost, by count
kernels   how the numeric loops are compiled
"""
