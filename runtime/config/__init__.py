"""What a node is told: the federation file, its own settings, its keys and certificates, and its broker's.

kinds         what a value of a file may be, and what a key is
keys          the keys that exist; those of the policy come from core/protocol/policy.py
tables        reading a file against them, and the error that names the place
load          the federation file and a node's own, checked
certificates  a node's private keys and certificates, checked
signer        an identity whose key is in no file
texts         writing files that a person reads
authority     a certificate authority, for federations that have one
owners        how separate owners make a federation and agree to it
broker        the files of its MQTT broker
"""
