"""What outlives a process: the journal, the model files, a silo's frozen integers, and where each of them lies."""
