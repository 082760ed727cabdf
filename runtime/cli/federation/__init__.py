"""Commands for those who run a federation: write it, start its nodes, look at them, deploy them."""
