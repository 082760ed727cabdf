"""Commands for a first look and for training: demo, run, simulate, and the data and models that they use."""
