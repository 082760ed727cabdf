"""Commands that attack: the audit, single attacks, lying nodes, and the experiments of the paper."""
