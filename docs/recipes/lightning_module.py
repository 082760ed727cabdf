"""A LightningModule: the Trainer runs a silo's local epochs.

pip install lightning
silomix run --task lightning_module:task --silos 5
"""

import logging

import lightning
import torch
from dirichlet_split import task as example
from torch.utils.data import DataLoader, TensorDataset

import silomix

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)  # it would greet in every round


class Classifier(lightning.LightningModule):  # yours
    def __init__(self, net):
        super().__init__()
        self.net = net

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


class Own(silomix.TorchTask):
    def fit(self, rng, round):
        # A trainer of its own for each round: no state of an optimiser outlives it.
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="cpu", enable_model_summary=False, num_sanity_val_steps=0, **quiet
        )
        trainer.fit(Classifier(self.net), DataLoader(TensorDataset(*self.share), batch_size=16, shuffle=True))
        return float(trainer.callback_metrics["loss"])


def task(silo=-1, silos=5):
    base = example(silo, silos)
    return Own(base.net, base.share, base.test, silo=silo)


if __name__ == "__main__":
    done = silomix.run(task, silos=5, rounds=3)
    print(f"accuracy {done.accuracy:.2f}, before {done.accuracy_before:.2f}")
