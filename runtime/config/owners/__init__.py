"""How separate owners make a federation, agree to it, and are known to each other.

enrol       a node's keys, made on its own host, and the file that others are shown
owner       an owner's own key, and what it looks at before it signs
assemble    the federation file, of enrolment files and a policy
accept      the owners' signatures on it
selfsigned  a node's own certificate
pins        by which certificate each node is known
rotate      changing it
epochs      later epochs as files, and what a node has of them
successor   the next epoch's file, and a node's entry in it
trial       all of this in one hand, for one machine
"""
