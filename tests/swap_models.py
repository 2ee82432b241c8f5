"""Healthy models that people have, small and with random weights, with a batch each and a loss."""

import torch
import transformers
from torch import nn

BUILT = {}
BATCH, LENGTH, WORDS = 4, 12, 50


def model(build):
    BUILT[build.__name__] = build
    return build


def words():
    return torch.randint(1, WORDS, (BATCH, LENGTH))


def padding():
    """1 where there is a word."""
    return (torch.arange(LENGTH) < torch.tensor([[LENGTH], [7], [5], [1]])).long()


class Sequence(nn.Module):
    """nn.Transformer as a user would wrap it, with padding and a causal mask."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.transformer = nn.Transformer(16, 2, 2, 2, 32, batch_first=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, source, target):
        causal = self.transformer.generate_square_subsequent_mask(target.shape[1])
        padded = torch.where(padding() > 0, 0.0, -torch.inf)
        hidden = self.transformer(
            self.embed(source),
            self.embed(target),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padded,
            memory_key_padding_mask=padded,
        )
        return self.head(hidden)


@model
def transformer():
    loss = nn.CrossEntropyLoss()
    return Sequence(), lambda m, x: loss(m(x, x).flatten(0, 1), x.flatten()), words


@model
def vision():
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.GroupNorm(2, 8),
        nn.Conv2d(8, 8, 3),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.Mish(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 5),
        nn.LogSoftmax(-1),
    )
    goal = torch.arange(BATCH)
    return net, lambda m, x: nn.functional.nll_loss(m(x), goal), lambda: torch.randn(BATCH, 3, 9, 9)


SIZES = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)


@model
def gpt2():
    sizes = dict(n_positions=32, n_embd=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    config = transformers.GPT2Config(vocab_size=WORDS, **sizes)
    net = transformers.GPT2LMHeadModel(config)
    net.loss_type = "ForCausalLM"  # without it there is a message, which breaks graphs
    return net, language_loss, words


@model
def llama():
    config = transformers.LlamaConfig(vocab_size=WORDS, num_key_value_heads=2, **SIZES)
    return transformers.LlamaForCausalLM(config), language_loss, words


@model
def bert():
    config = transformers.BertConfig(vocab_size=WORDS, **SIZES)
    return transformers.BertForMaskedLM(config), language_loss, words


@model
def t5():
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config), language_loss, words


@model
def vit():
    config = transformers.ViTConfig(image_size=16, patch_size=4, num_labels=5, **SIZES)
    goal = torch.arange(BATCH)

    def loss(m, x):
        return m(pixel_values=x, labels=goal).loss

    return (
        transformers.ViTForImageClassification(config),
        loss,
        lambda: torch.randn(BATCH, 3, 16, 16),
    )


def language_loss(m, x):
    return m(input_ids=x, attention_mask=padding(), labels=x).loss


def built(name, dtype=torch.float32):
    """The model, its loss and its batches, always the same."""
    torch.manual_seed(0)
    net, loss, batch = BUILT[name]()
    return net.to(dtype), loss, batch


def trained(net, loss, batch, dtype=torch.float32, steps=20):
    """The losses of these steps, and the parameters at the end."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        x = batch()
        value = loss(net, x.to(dtype) if x.is_floating_point() else x)
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses
