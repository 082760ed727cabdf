"""Your own records, dealt out to silos that differ: Dirichlet(alpha) over the classes.

The smaller alpha, the fewer classes a silo has. At 0.1 most of a silo's records are of one or two classes, which is
where source inference works best; at 10 all silos look alike.

    silomix run --task dirichlet_split:task --silos 5 --option alpha=0.1
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import silomix
from silomix.models.data.partition import deal


def task(silo=-1, silos=5, alpha=0.3, seed=1):
    x, y = load_digits(return_X_y=True)  # your records: x of shape (records, ...), y with one class each
    x, y = torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y)
    # Everybody deals the same from the seed, and keeps its own. Some rows are held out as what an attacker may know.
    mine = deal(y[:1400].numpy(), silos, silo, seed=seed, alpha=alpha, shadow=0.05)
    torch.manual_seed(seed)  # all begin with the same model
    net = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    own, known = (x[mine.own], y[mine.own]), (x[mine.shadow], y[mine.shadow])
    return silomix.TorchTask(
        net, own, (x[1400:], y[1400:]), silo=silo, seed=seed, shadow=known, epochs=3, batch=16, lr=0.02
    )


if __name__ == "__main__":
    for silo in range(5):
        print(f"silo {silo}:", torch.bincount(task(silo).share[1], minlength=10).tolist())
    done = silomix.run(task, silos=5, rounds=5)
    print(f"accuracy {done.accuracy:.2f} after {len(done.history)} rounds")
