"""Data sets: read from their original files, fetched from packages, and dealt out to silos."""
