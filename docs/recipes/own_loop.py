"""Your own training loop: `train(model, loader)` as it is, in a subclass that calls it.

`fit` moves `self.net` from the global model to this silo's, in place, and returns the mean loss. Randomness comes from
torch's generator, which is seeded for each round: a round that is tried again gives the same update.

    silomix run --task own_loop:task --silos 5
"""

import torch
from dirichlet_split import task as example
from torch.utils.data import DataLoader, TensorDataset

import silomix


def train(model, loader):  # yours, with any optimiser, schedule and loss
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    total = 0.0
    for x, y in loader:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimiser.step()
        total += loss.item()
    return total / len(loader)


class Own(silomix.TorchTask):
    def fit(self, rng, round):
        loader = DataLoader(TensorDataset(*self.share), batch_size=16, shuffle=True)
        return train(self.net, loader)


def task(silo=-1, silos=5):
    base = example(silo, silos)
    return Own(base.net, base.share, base.test, silo=silo)


if __name__ == "__main__":
    done = silomix.run(task, silos=5, rounds=5)
    print(f"accuracy {done.accuracy:.2f}, before {done.accuracy_before:.2f}")
    task().net.load_state_dict(done.state_dict())  # the trained model, for torch
