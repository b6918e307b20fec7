"""Measure what prototypes, gradients and counts disclose: the tables and pictures of docs/privacy.md.

    python benchmarks/leakage.py [--json docs/results/data/leakage.json] [--prototypes 10]

The attacker has the client's encoder (an MLP) and 3,000 public images of mnist. The images it looks for are other ones.
The encoder was trained on the public images, or, where a row says so, on the images of the client: as many of each of
three classes as there are behind the prototype. About four minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from protofed import draws
from protofed.data.sources import SOURCES
from protofed.prototypes import Prototypes
from protofed.trust.privacy.accounting import RoundCost, gaussian_epsilon, noise_factor
from protofed.trust.privacy.release import noise_deviations, noisy_prototypes
from protofed.trust.privacy.section import PrivacySection

SIZES = (1, 2, 5, 20, 100)
"""Examples of a class behind a prototype."""
BATCHES = (1, 8)
EPSILONS = (None, 8.0, 1.0)
"""Epsilon of one release; None: no noise."""
PUBLIC, CANDIDATES = 3000, 6000
ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs" / "results" / "data" / "leakage.json"


class Drawn:
    """Noise that can be repeated."""

    def __init__(self, *parts: int | str) -> None:
        self.generator = draws.generator(*parts)

    def uniform(self, count: int) -> Tensor:
        return torch.rand(count, generator=self.generator, dtype=torch.double)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.double)


def images(first: int, last: int, root: str = "") -> tuple[Tensor, Tensor]:
    """Images of mnist as rows of 784 numbers from 0 to 1, in a fixed random order, and their labels."""
    train = SOURCES["mnist"](root).train
    order = torch.randperm(len(train), generator=draws.generator(0, "leakage"))[first:last]
    return train.x[train.index[order]].flatten(1).float() / 255, train.labels[order]


def trained(net: nn.Module, loss: Callable[[Tensor], Tensor], n: int, steps: int, seed: str) -> nn.Module:
    """The net after steps of Adam on random batches of 64 of n examples; `loss` gets their positions."""
    optimiser, draw = torch.optim.Adam(net.parameters(), 1e-3), draws.generator(0, seed)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(torch.randint(n, (64,), generator=draw)).backward()
        optimiser.step()
    return net.eval().requires_grad_(False)


def new_net(*sizes: int, seed: str) -> nn.Sequential:
    """Dense layers with Tanh between them."""
    with draws.DrawFrom(draws.generator(0, seed)):
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.Tanh())))[:-1]


def classifier() -> nn.Sequential:
    """An untrained encoder, an activation and a head."""
    return nn.Sequential(new_net(784, 200, 50, seed="encoder"), nn.Tanh(), new_net(50, 10, seed="head"))


def clients_encoder(x: Tensor, y: Tensor) -> nn.Module:
    """An encoder that was trained on the images of one client, without federation."""
    net = classifier()
    trained(net, lambda rows: F.cross_entropy(net(x[rows]), y[rows]), len(x), 300, "train client")
    return nn.Sequential(net[0], net[1])


class Attacker:
    """What the attacker has: the encoder, a head, a decoder trained on public images, and their class means."""

    def __init__(self, steps: int = 1500) -> None:
        x, y = images(0, PUBLIC)
        net = classifier()
        trained(net, lambda rows: F.cross_entropy(net(x[rows]), y[rows]), len(x), steps, "train")
        self.net, self.encode = net, nn.Sequential(net[0], net[1])
        z = self.encode(x)
        self.decode = new_net(50, 300, 784, seed="decoder")
        trained(self.decode, lambda rows: F.mse_loss(self.decode(z[rows]), x[rows]), len(x), 3000, "decode")
        self.class_means = torch.stack([x[y == label].mean(0) for label in range(10)])
        self.clip = float(z.norm(dim=1).median())

    def inverted(self, prototype: Tensor, seed: int) -> Tensor:
        """The image whose embedding is nearest to the prototype, found by Adam, with a penalty on rough images."""
        raw = 0.1 * torch.randn(1, 784, generator=draws.generator(0, "inverted", seed)) - 2
        raw.requires_grad_()
        optimiser = torch.optim.Adam([raw], 0.1)
        for _ in range(300):
            x = torch.sigmoid(raw)
            grid = x.reshape(28, 28)
            rough = (grid[1:] - grid[:-1]).abs().mean() + (grid[:, 1:] - grid[:, :-1]).abs().mean()
            loss = (self.encode(x) - prototype).square().mean() + 0.03 * rough
            (raw.grad,) = torch.autograd.grad(loss, raw)
            optimiser.step()
        return torch.sigmoid(raw.detach())[0]

    def decoded(self, prototype: Tensor) -> Tensor:
        return self.decode(prototype).clamp(0, 1)


def noise_for(epsilon: float | None) -> float:
    """The noise multiplier of one release with this epsilon, delta 1e-5, add-remove."""
    return 0.0 if epsilon is None else noise_factor(RoundCost(1.0), 1, PrivacySection(), epsilon)


def psnr(guess: Tensor, truth: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of images with values from 0 to 1; at most 60."""
    return float(-10 * torch.log10((guess - truth).square().mean().clamp(min=1e-6)))


def released(attacker: Attacker, members: Tensor, epsilon: float | None, seed: int) -> Tensor:
    """The prototype [50] of images of one class."""
    z = attacker.encode(members)
    if epsilon is None:
        return z.mean(0)
    privacy = PrivacySection(noise=noise_for(epsilon), clip=attacker.clip, floor=1.0)
    label = torch.zeros(len(z), dtype=torch.long)
    for attempt in range(1000):  # a noisy count below the floor is not sent; the attacker waits for one that is
        made: Prototypes = noisy_prototypes(z, label, 1, privacy, Drawn(0, "released", seed, attempt))
        if made.support[0, 0] > 0:
            return made.mean[0, 0]
    raise AssertionError


def area_under_curve(members: Tensor, others: Tensor) -> float:
    """The probability that a member has a higher score than another image; a tie counts half."""
    higher = (members[:, None] > others[None]).double() + 0.5 * (members[:, None] == others[None])
    return float(higher.mean())


def members_of_client(x: Tensor, y: Tensor, label: int, size: int, members: Tensor) -> tuple[Tensor, Tensor]:
    """Images and labels of a client: the members of one class, and as many of each of the next two classes."""
    others = [(label + step) % 10 for step in (1, 2)]
    images = torch.cat([members, *(x[y == other][:size] for other in others)])
    return images, torch.tensor([label, *others]).repeat_interleave(size)


def prototype_leaks(
    attacker: Attacker, untrained: Attacker, repeats: int
) -> tuple[dict[str, Any], dict[str, list[Tensor]]]:
    """Inversion (PSNR to the nearest member) and membership (AUC) by class size and epsilon; and images to show."""
    x, y = images(PUBLIC, CANDIDATES + PUBLIC)
    figures, shown = {}, {}
    for size in SIZES:
        rows: dict[str, list[float]] = {}
        for repeat in range(repeats):
            label = repeat % 10
            of_class = x[y == label]
            chosen = torch.randperm(len(of_class), generator=draws.generator(0, "members", size, repeat))
            members, others = of_class[chosen[:size]], of_class[chosen[size : size + 200]]

            def best(guess: Tensor, members: Tensor = members) -> float:
                return max(psnr(guess, member) for member in members)

            def add(key: str, value: float, rows: dict[str, list[float]] = rows) -> None:
                rows.setdefault(key, []).append(value)

            add("public mean", best(attacker.class_means[label]))
            add("decoded, untrained", best(untrained.decoded(released(untrained, members, None, repeat))))
            own = members_of_client(x, y, label, size, members)
            encode = clients_encoder(*own)
            centre = encode(members).mean(0)
            own_scores = [-(encode(part) - centre).norm(dim=1) for part in (members, others)]
            add("membership, client's encoder", area_under_curve(*own_scores))
            for epsilon in EPSILONS:
                name = "" if epsilon is None else f" epsilon {epsilon:g}"
                prototype = released(attacker, members, epsilon, 1000 * size + repeat)
                inverted = attacker.inverted(prototype, 1000 * size + repeat)
                decoded = attacker.decoded(prototype)
                add(f"inverted{name}", best(inverted))
                add(f"decoded{name}", best(decoded))
                scores = [-(attacker.encode(part) - prototype).norm(dim=1) for part in (members, others)]
                add(f"membership{name}", area_under_curve(*scores))
                if repeat == 4:
                    shown.setdefault(f"decoded{name}", []).append(decoded)
                    shown.setdefault(f"inverted{name}", []).append(inverted)
            if repeat == 4:
                quality = [psnr(shown["decoded"][-1], member) for member in members]
                shown.setdefault("nearest member", []).append(members[quality.index(max(quality))])
        figures[str(size)] = {key: mean(values) for key, values in rows.items()}
    return figures, shown


def gradient_leaks(attacker: Attacker, repeats: int) -> tuple[dict[str, Any], dict[str, list[Tensor]]]:
    """Gradient inversion on one step of fedavg's client: PSNR of the images of the batch, by batch size and epsilon."""
    x, y = images(PUBLIC, CANDIDATES + PUBLIC)
    params = {name: value.clone().requires_grad_() for name, value in attacker.net.named_parameters()}

    def gradients(batch: Tensor, labels: Tensor, graph: bool = False) -> tuple[Tensor, ...]:
        out = torch.func.functional_call(attacker.net, params, (batch,))
        return torch.autograd.grad(F.cross_entropy(out, labels), tuple(params.values()), create_graph=graph)

    def noisy(batch: Tensor, labels: Tensor, epsilon: float | None, seed: int) -> list[Tensor]:
        """The mean gradient, as the server computes it from the weights before and after the step."""
        if epsilon is None:
            return list(gradients(batch, labels))
        clip, draw, parts = 1.0, Drawn(0, "gradient", seed), []
        singles = [gradients(batch[i : i + 1], labels[i : i + 1]) for i in range(len(batch))]
        norms = [sum(float(part.square().sum()) for part in single) ** 0.5 for single in singles]
        for number, value in enumerate(params.values()):
            summed = sum(single[number] * min(1.0, clip / norm) for single, norm in zip(singles, norms, strict=True))
            parts.append((summed + clip * noise_for(epsilon) * draw.normal(*value.shape).float()) / len(batch))
        return parts

    figures, shown = {}, {}
    for size in BATCHES:
        rows: dict[str, list[float]] = {}
        for repeat in range(repeats):
            chosen = torch.randperm(len(x), generator=draws.generator(0, "batch", size, repeat))[:size]
            truth, labels = x[chosen], y[chosen]
            for epsilon in EPSILONS:
                name = "" if epsilon is None else f" epsilon {epsilon:g}"
                goal = noisy(truth, labels, epsilon, 100 * size + repeat)
                guess = matched(goal, labels, gradients, 100 * size + repeat)
                cost = torch.tensor([[-psnr(one, other) for other in truth] for one in guess])
                pairs = list(zip(*linear_sum_assignment(cost), strict=True))
                rows.setdefault(f"matched{name}", []).append(mean(-float(cost[pair]) for pair in pairs))
                rows.setdefault(f"best{name}", []).append(-float(cost.min()))
                if repeat == 0:
                    ordered = guess[[int(one) for one, _ in sorted(pairs, key=lambda pair: pair[1])]]
                    shown[f"batch {size}{name}"] = list(ordered)
                    shown[f"batch {size} truth"] = list(truth)
        figures[str(size)] = {key: mean(values) for key, values in rows.items()}
    return figures, shown


def matched(goal: list[Tensor], labels: Tensor, gradients: Callable[..., Any], seed: int) -> Tensor:
    """Images whose gradient points in the direction of the goal (Geiping et al. 2020). The labels are known.

    They start from what the gradient of the first layer shows at once: its rows divided by those of its bias.
    """
    weight, bias = goal[0], goal[1]
    largest = bias.abs().argsort(descending=True)[: len(labels)]
    start = (weight[largest] / bias[largest].unsqueeze(1)).clamp(0.02, 0.98)
    raw = torch.logit(start).requires_grad_()
    optimiser = torch.optim.Adam([raw], 0.1)
    size = torch.stack([part.square().sum() for part in goal]).sum()
    for _ in range(1000):
        guess = gradients(torch.sigmoid(raw), labels, True)
        product = torch.stack([(a * b).sum() for a, b in zip(goal, guess, strict=True)]).sum()
        own = torch.stack([part.square().sum() for part in guess]).sum()
        (raw.grad,) = torch.autograd.grad(1 - product / (size * own).sqrt(), raw)
        optimiser.step()
    return torch.sigmoid(raw.detach())


def count_leaks() -> dict[str, Any]:
    """What counts disclose of a client with three of ten classes and 30 examples of each, by epsilon."""
    counts = torch.tensor([30.0] * 3 + [0.0] * 7, dtype=torch.double)
    figures = {}
    for epsilon in EPSILONS:
        _, deviation = noise_deviations(PrivacySection(noise=noise_for(epsilon)))
        noisy = counts + deviation * Drawn(0, "counts").normal(10_000, 10)
        known = ((noisy >= PrivacySection().floor) == (counts > 0)).double().mean()
        figures["none" if epsilon is None else f"{epsilon:g}"] = {
            "classes known": float(known),
            "mean error": float((noisy - counts).abs().mean()),
        }
    return figures


def tables(kept: dict[str, Any]) -> dict[str, str]:
    """The Markdown tables of docs/privacy.md by name."""

    def rows(head: list[str], lines: list[list[str]]) -> str:
        return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines])

    sizes = list(kept["prototypes"])
    names = {
        "nobody's upload: the mean of public images": "public mean",
        "inversion by optimisation": "inverted",
        "decoder trained on public images": "decoded",
        "decoder, encoder not trained yet": "decoded, untrained",
        "decoder, epsilon 8": "decoded epsilon 8",
        "decoder, epsilon 1": "decoded epsilon 1",
    }
    inversion = [[name, *(f"{kept['prototypes'][size][key]:.1f}" for size in sizes)] for name, key in names.items()]
    member = [
        [name, *(f"{kept['prototypes'][size][key]:.2f}" for size in sizes)]
        for name, key in (
            ("no noise", "membership"),
            ("no noise, encoder trained on the client's images", "membership, client's encoder"),
            ("epsilon 8", "membership epsilon 8"),
            ("epsilon 1", "membership epsilon 1"),
        )
    ]
    gradient = [
        [name.format(size), *(f"{row[f'{key}{noise}']:.1f}" for noise in ("", " epsilon 8", " epsilon 1"))]
        for size, row in kept["gradients"].items()
        for name, key in (("batch of {}, mean over its images", "matched"), ("batch of {}, the best of them", "best"))
        if size != "1" or key == "matched"
    ]
    levels = {"none": "no noise", "8": "epsilon 8", "1": "epsilon 1"}
    counts = [
        [levels[name], f"{100 * row['classes known']:.1f} %", f"{row['mean error']:.1f}"]
        for name, row in kept["counts"].items()
    ]
    return {
        "inversion": rows(["attack on a prototype of", *(f"{size} images" for size in sizes)], inversion),
        "membership": rows(["membership by a prototype of", *(f"{size} images" for size in sizes)], member),
        "gradients": rows(["attack on fedavg's upload", "no noise", "epsilon 8", "epsilon 1"], gradient),
        "counts": rows(["counts", "classes known", "mean error of a count"], counts),
    }


def draw_images(lines: dict[str, list[Tensor]], heads: list[str], path: Path) -> None:
    """Rows of images."""
    width = max(map(len, lines.values()))
    figure, axes = plt.subplots(len(lines), width, figsize=(0.62 * width + 1.5, 0.62 * len(lines) + 0.3), squeeze=False)
    for row, (name, pictures) in zip(axes, lines.items(), strict=True):
        row[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
        for column, axis in enumerate(row):
            axis.set(xticks=[], yticks=[])
            if column < len(pictures):
                axis.imshow(pictures[column].reshape(28, 28), cmap="gray", vmin=0, vmax=1)
            else:
                axis.set_visible(column == 0)
    for axis, head in zip(axes[0], heads, strict=False):
        axis.set_title(head, fontsize=7)
    figure.tight_layout(pad=0.3)
    figure.savefig(path, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, default=KEPT)
    parser.add_argument("--prototypes", type=int, default=10, help="prototypes per class size")
    options = parser.parse_args()
    torch.set_num_threads(1)
    assert abs(gaussian_epsilon(1 / noise_for(1.0), 1e-5) - 1) < 2e-3
    attacker = Attacker()
    prototypes, of_prototypes = prototype_leaks(attacker, Attacker(steps=0), options.prototypes)
    gradients, of_gradients = gradient_leaks(attacker, max(2, options.prototypes // 2))
    x, y = images(PUBLIC, PUBLIC + CANDIDATES)
    kept = {
        "accuracy": float((attacker.net(x).argmax(1) == y).double().mean()),
        "clip": attacker.clip,
        "noise": {f"{epsilon:g}": noise_for(epsilon) for epsilon in EPSILONS if epsilon},
        "prototypes": prototypes,
        "gradients": gradients,
        "counts": count_leaks(),
    }
    options.json.write_text(json.dumps(kept, indent=1) + "\n")
    pictures = ROOT / "docs" / "pictures"
    rows = ("nearest member", "inverted", "decoded", "decoded epsilon 8", "decoded epsilon 1")
    heads = [f"{size} image{'s' if size > 1 else ''}" for size in SIZES]
    draw_images({name: of_prototypes[name] for name in rows}, heads, pictures / "leakage-prototypes.png")
    lines = {}
    for size in BATCHES:
        for kind in ("truth", "", "epsilon 8", "epsilon 1"):
            name = f"batch {size} {kind}".strip()
            lines[name] = of_gradients[name]
    draw_images(lines, [], pictures / "leakage-gradients.png")
    for name, text in tables(kept).items():
        print(f"\n{name}\n{text}")


if __name__ == "__main__":
    main()
