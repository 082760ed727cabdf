"""What a node is told: the federation file, its own settings, its keys and certificates, and its broker's.

kinds         what a value of a file may be, and what a key is
keys          the keys that exist; those of the policy come from core/protocol/policy.py
tables        reading a file against them, and the error that names the place
load          the federation file and a node's own, checked
certificates  a node's private keys and certificates, checked
enrol         writing a whole federation
authority     its certificate authority
broker        the files of its MQTT broker
"""
