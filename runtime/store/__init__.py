"""What outlives a process: the journal and the model files."""
