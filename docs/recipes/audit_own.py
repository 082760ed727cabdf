"""Audit your own task in ten lines: run it with captures, mount source inference on what the server saw, and compare.

The attack has to work on the unprotected updates, or its failure on the others would prove nothing. The command line
does the same with `silomix run --task dirichlet_split:task --audit`, and with every attack and a page as
`silomix audit --quick --task dirichlet_split:task --silos 5`.
"""

from dirichlet_split import task

import silomix

if __name__ == "__main__":
    silomix.run(task, silos=5, rounds=4, out="audited", auditable=True, options={"alpha": 0.1})
    verdict = silomix.audit("audited")
    print(verdict.text())
    raise SystemExit(0 if verdict.protected else 1)
