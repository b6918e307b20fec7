"""Every table and figure of the four papers that shows a result, and what has become of it here."""

from __future__ import annotations

from typing import NamedTuple

PAPER_SCALE, SMALLER, NOT_YET, CANNOT = "run at paper scale", "run smaller", "not yet", "cannot be run here"
_MADE = "protofed reproduce makes it"
_NO_DATA = "the data cannot be had"
FEDNH, MARGIN, MPFEDCL = (f"python scripts/{name}_table.py" for name in ("fednh", "protomargin", "mpfedcl"))
_SPIRAL = "python scripts/spiral_pictures.py"


class Entry(NamedTuple):
    name: str
    paper: str
    shows: str
    state: str  # one of the four above
    how: str  # the command that makes it, or why it is not made


_PAPERS: dict[tuple[str, str], tuple[tuple[str, str, str, str], ...]] = {
    ("fedproto", "FedProto (Tan et al. 2022)"): (
        ("table1", "Table 1: MNIST, stdev 2", PAPER_SCALE, f"{_MADE} in two hours; docs/results/fedproto.md"),
        ("table2", "Table 2: MNIST, stdev 3", NOT_YET, f"{_MADE} in hours"),
        ("table3", "Tables 1 and 3: FEMNIST", NOT_YET, f"{_MADE}, with digits only and fewer images"),
        ("table4", "Tables 1 and 4: CIFAR-10", NOT_YET, f"{_MADE} in days, with a subset and nets from scratch"),
        ("figure2", "Fig. 2: t-SNE of four methods", PAPER_SCALE, f"{_MADE} in ten minutes"),
        ("figure3", "Fig. 3: fewer images of a class", PAPER_SCALE, f"{_MADE}; one seed so far"),
        ("figure4", "Fig. 4: λ, on FEMNIST", SMALLER, f"{_MADE}, with digits only and fewer images"),
    ),
    ("fednh", "FedNH (Dai et al. 2023)"): (
        ("table1", "Table 1: Cifar10, Dir(0.3)", SMALLER, f"a subset, 60 rounds, four methods: {FEDNH} table1"),
        ("table1-others", "Table 1: Dir(1.0), Cifar100, TinyImageNet", NOT_YET, "recipes/fednh-cifar10.toml, --set"),
        ("table2", "Table 2: fairness, Cifar10", SMALLER, f"in the same table: {FEDNH} table1"),
        ("table3", "Table 3: 30 % of the clients", NOT_YET, "recipes/fednh-cifar10.toml with --set run.sample=0.3"),
        ("figure1", "Fig. 1: the spiral, centralised", SMALLER, f"with less noise: {_SPIRAL}"),
        ("figure2", "Fig. 2: the spiral, federated", SMALLER, f"with less noise: {_SPIRAL}"),
        ("figure3", "Fig. 3, 7, 8: similarity of prototypes", NOT_YET, "docs/gallery.md has a small run of fednh"),
        ("figure4", "Fig. 4: rho", SMALLER, f"30 rounds, one seed: {FEDNH} rho"),
        ("figure6", "Fig. 6: representations of clients", NOT_YET, "protofed draw DIR --what embeddings"),
    ),
    ("protomargin", "Prototype-guided FL (Michieli & Ozay 2021)"): (
        ("table2", "Table 2: synthetic, MNIST", SMALLER, f"without FedAtt: {MARGIN} table2"),
        ("table3", "Table 3: ablations on MNIST", SMALLER, f"{MARGIN} table3"),
        ("table4", "Table 4: margins and FFD; synthetic, MNIST", SMALLER, f"{MARGIN} table4"),
        ("figure2", "Fig. 2, 3, 4, S2: curves, attention; synthetic, MNIST", SMALLER, f"{MARGIN} pictures"),
        ("femnist", "FEMNIST and CelebA in all of these", CANNOT, f"{_NO_DATA}; recipes/ has stand-ins"),
        ("figure5", "Fig. 5, 6, S1, S3, S4: segmentation", CANNOT, f"{_NO_DATA}; segmentation is not built yet"),
    ),
    ("mpfedcl", "MP-FedCL (Qiao et al. 2023)"): (
        ("table2", "Table II: numbers sent, MNIST", PAPER_SCALE, "docs/results/mpfedcl.md"),
        ("table5", "Table V: Digit-5 by domain", SMALLER, f"with an encoder of our own: {MPFEDCL} domains"),
        ("table6", "Table VI: label skew, MNIST", PAPER_SCALE, f"{MPFEDCL} mnist"),
        ("table6-others", "Table VI: Digit-5, Office-10", NOT_YET, f"with an encoder of our own: {MPFEDCL} labels"),
        ("table7", "Table VII: Office-10 by domain", SMALLER, f"in other rounds: {MPFEDCL} domains"),
        ("table7-others", "Tables VII, VIII: Dir(0.5), equal time", NOT_YET, f"in other rounds: {MPFEDCL} labels"),
        ("figure5", "Fig. 5: K", NOT_YET, f"{MPFEDCL} k"),
        ("figure8", "Fig. 8: alpha", NOT_YET, f"{MPFEDCL} alpha"),
        ("figure9", "Fig. 9: 5 to 40 clients", NOT_YET, f"{MPFEDCL} clients"),
        ("figure10", "Fig. 1, 10: embeddings, curves", NOT_YET, "protofed draw DIR --what tsne, --what curves"),
        ("domainnet", "DomainNet in all of these", CANNOT, _NO_DATA),
    ),
}

ENTRIES: tuple[Entry, ...] = tuple(
    Entry(f"{short}-{name}", paper, shows, state, how)
    for (short, paper), rows in _PAPERS.items()
    for name, shows, state, how in rows
)
