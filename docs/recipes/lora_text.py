"""Hugging Face transformers with PEFT: LoRA on text. Only the adapters and the classifier travel.

The text is 20 Newsgroups (`silomix data get newsgroups`). Without a checkpoint the network is a small DistilBERT made
from nothing, to see that it runs; with one, a directory with config.json and model.safetensors, it is what one would
fine-tune. A checkpoint must be the same at every silo: the schema carries a digest of what is frozen.

    pip install transformers peft
    silomix data get newsgroups
    silomix run --task lora_text:task --silos 5 --option checkpoint=distilbert --option vocabulary=distilbert/vocab.txt
"""

from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoModelForSequenceClassification, DistilBertConfig

import silomix
from silomix.models.data.catalogue import load
from silomix.models.data.partition import deal
from silomix.models.data.text import hashed, token_ids, word_pieces

WORDS, LENGTH = 8000, 64


class Scores(nn.Module):
    """Takes token ids and returns the scores of the classes, which is what a task trains."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, attention_mask=(ids != 0).long()).logits


def adapted(classes, checkpoint="", seed=1):
    torch.manual_seed(seed)  # all begin with the same adapters
    if checkpoint:
        base = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=classes)
    else:
        size = {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 2, "max_position_embeddings": LENGTH}
        config = DistilBertConfig(vocab_size=WORDS, num_labels=classes, dropout=0.0, attention_dropout=0.0, **size)
        base = AutoModelForSequenceClassification.from_config(config)
    lora = LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, lora_dropout=0.0, target_modules=["q_lin", "v_lin"])
    return Scores(get_peft_model(base, lora))


def task(silo=-1, silos=5, alpha=1.0, seed=1, checkpoint="", vocabulary="", epochs=1):
    data = load("newsgroups", "", seed)
    tokens = word_pieces(Path(vocabulary)) if vocabulary else hashed(WORDS)

    def records(rows, y, picked):
        return torch.from_numpy(token_ids(rows.take(picked), LENGTH, tokens)), torch.from_numpy(y[picked])

    mine = deal(data.y, silos, silo, seed=seed, alpha=alpha)
    test = torch.randperm(len(data.test_y), generator=torch.Generator().manual_seed(seed))[:1000].sort().values.numpy()
    own = records(data.x, data.y, mine.own)
    return silomix.TorchTask(
        adapted(data.classes, checkpoint, seed),
        own,
        records(data.test_x, data.test_y, test),
        silo=silo,
        seed=seed,
        epochs=epochs,
        batch=16,
        lr=0.01,
    )


if __name__ == "__main__":
    sent = task().schema().parameters
    print(f"{sent:,} of {sum(p.numel() for p in task().net.parameters()):,} values travel")
    done = silomix.run(task, silos=3, rounds=2)
    print(f"accuracy {done.accuracy:.2f}, before {done.accuracy_before:.2f}")
