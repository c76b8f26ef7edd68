"""The models of `fluid_models` in torch: eager, or compiled.

`python torch_models.py eager|compiled MODEL` answers each line of its input with a round of step
times.
"""

import math
import os
import sys

import torch
from fluid_models import MODELS, batch_of
from rounds import answer
from torch import nn
from torch.nn import functional as f


class Bottleneck(nn.Module):
    def __init__(self, inside, width, stride=1):
        super().__init__()
        self.a = nn.Conv2d(inside, width, 1, bias=False)
        self.b = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.c = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(n) for n in (width, width, 4 * width)])
        self.short = None
        if stride != 1 or inside != 4 * width:
            conv = nn.Conv2d(inside, 4 * width, 1, stride, bias=False)
            self.short = nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x):
        y = f.relu(self.norms[0](self.a(x)))
        y = f.relu(self.norms[1](self.b(y)))
        y = self.norms[2](self.c(y))
        return f.relu(y + (x if self.short is None else self.short(x)))


def resnet50():
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inside = 64
    for stage, depth in enumerate((3, 4, 6, 3)):
        for i in range(depth):
            layers.append(Bottleneck(inside, 64 << stage, 2 if i == 0 and stage else 1))
            inside = 256 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, 10))


class Encoder(nn.Module):
    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.out, self.up = nn.Linear(width, width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])

    def forward(self, x):
        n, length, width = x.shape

        def split(y):
            return y.reshape(n, length, self.heads, width // self.heads).transpose(1, 2)

        q, k, v = (split(linear(x)) for linear in self.qkv)
        scores = q @ k.transpose(2, 3) / math.sqrt(width // self.heads)
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(n, length, width)
        first = self.norms[0](x + self.out(mixed))
        return self.norms[1](first + self.down(f.relu(self.up(first))))


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.lstm = nn.Embedding(5000, 128), nn.LSTM(128, 128, batch_first=True)
        self.out = nn.Linear(128, 2)

    def forward(self, words):
        hidden, _ = self.lstm(self.words(words))
        return self.out(hidden[:, -1])


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(200000, 64, sparse=True)
        self.inner, self.out = nn.Linear(256, 128), nn.Linear(128, 100)

    def forward(self, *words):
        joined = torch.cat([self.table(w[:, 0]) for w in words], 1)
        return self.out(torch.sigmoid(self.inner(joined)))


def mlp():
    wide = nn.Linear(1280, 1280)
    return nn.Sequential(nn.Linear(32, 1280), nn.Tanh(), wide, nn.Tanh(), nn.Linear(1280, 2))


def lenet():
    convs = [nn.Conv2d(1, 20, 5), nn.ReLU(), nn.MaxPool2d(2, 2)]
    convs += [nn.Conv2d(20, 50, 5), nn.ReLU(), nn.MaxPool2d(2, 2)]
    return nn.Sequential(*convs, nn.Flatten(), nn.Linear(800, 10))


def sgd(rate, **more):
    return lambda parameters: torch.optim.SGD(parameters, rate, **more)


def adam(rate):
    return lambda parameters: torch.optim.Adam(parameters, rate)


def bottleneck():
    return nn.Sequential(Bottleneck(64, 64), Bottleneck(256, 64), Bottleneck(256, 64))


NETS = {
    "mlp": (mlp, sgd(0.01)),
    "lenet": (lenet, adam(0.001)),
    "bottleneck": (bottleneck, sgd(0.01, momentum=0.9)),
    "resnet50": (resnet50, sgd(0.001, momentum=0.9, weight_decay=1e-4)),
    "transformer": (Encoder, adam(1e-4)),
    "lstm": (Text, adam(0.001)),
    "word2vec": (Words, sgd(0.1)),
}


def loss_of(name, net):
    def compute(given, label):
        found = net(*given)
        if label is not None:
            return f.cross_entropy(found, label)
        return found.square().mean() if name == "transformer" else found.mean()

    return compute


def main():
    way, name = sys.argv[1:]
    torch.manual_seed(1)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or torch.get_num_threads()))
    make, optimizer_of = NETS[name]
    net = make()
    optimizer = optimizer_of(net.parameters())
    _, batch, inputs, steps = MODELS[name]
    feed = {n: torch.from_numpy(array) for n, array in batch_of(batch, inputs).items()}
    label = feed.pop("label")[:, 0] if "label" in feed else None
    given = list(feed.values())
    for each in given:
        each.requires_grad_(name == "bottleneck")
    compute = loss_of(name, net)
    if way == "compiled":
        compute = torch.compile(compute)

    def step():
        optimizer.zero_grad()
        loss = compute(given, label)
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(3):
        step()
    answer({}, step, steps)


if __name__ == "__main__":
    main()
