"""Messages of the protocol, version 1. The .proto files hold the rules in comments, docs/protocol.md in prose.

plan.proto      Plan: the numbers that everyone computes in
schema.proto    Schema, Tensor: the order of the model's values in a vector
manifest.proto  Manifest, RoundKey, Fence: what an attempt at a round is
body.proto      Frame of Header, Chunk, Trailer; SealedSeed; Receipt: what a silo sends and what it gets for it
member.proto    Greeting, Pin: what members tell each other outside of rounds

Modules ending in ``_pb2`` are generated: change the .proto file and run ``make proto``.
"""
