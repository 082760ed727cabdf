"""A whole federation in one process: its rounds, its workers, its record on disk and its curves."""
