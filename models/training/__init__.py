"""How a torch module is trained: what of it travels, checks, seeds, DP-SGD, and the way back to torch."""
