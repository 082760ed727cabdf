"""What a node is told: the federation file, its own settings, its keys and certificates, and its broker's."""
