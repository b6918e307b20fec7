"""Every table and figure of the four papers that shows a result, and what has become of it here."""

from __future__ import annotations

from typing import NamedTuple

PAPER_SCALE, SMALLER, NOT_YET, CANNOT = "run at paper scale", "run smaller", "not yet", "cannot be run here"

FEDPROTO = "FedProto (Tan et al. 2022)"
FEDNH = "FedNH (Dai et al. 2023)"
PROTOMARGIN = "Prototype-guided FL (Michieli & Ozay 2021)"
MPFEDCL = "MP-FedCL (Qiao et al. 2023)"


class Entry(NamedTuple):
    name: str
    paper: str
    shows: str
    state: str  # one of the four above
    how: str  # the command that makes it, or why it is not made


def here(name: str, more: str = "") -> str:
    return f"protofed reproduce {name}{more}"


ENTRIES: tuple[Entry, ...] = (
    Entry(
        "fedproto-table1",
        FEDPROTO,
        "Table 1: MNIST, stdev 2",
        NOT_YET,
        f"{here('fedproto-table1')} makes it; docs/results/fedproto.md has --quick.",
    ),
    Entry(
        "fedproto-table2",
        FEDPROTO,
        "Table 2: MNIST, stdev 3",
        NOT_YET,
        f"{here('fedproto-table2')} makes it: two hours.",
    ),
    Entry(
        "fedproto-table3",
        FEDPROTO,
        "Tables 1 and 3: FEMNIST",
        NOT_YET,
        f"Only digits can be had here; {here('fedproto-table3')} makes that.",
    ),
    Entry(
        "fedproto-table4",
        FEDPROTO,
        "Tables 1 and 4: CIFAR-10",
        NOT_YET,
        f"A subset, nets from scratch; {here('fedproto-table4')} makes it in days.",
    ),
    Entry(
        "fedproto-figure2", FEDPROTO, "Fig. 2: t-SNE of four methods", NOT_YET, f"{here('fedproto-figure2')} makes it."
    ),
    Entry(
        "fedproto-figure3",
        FEDPROTO,
        "Fig. 3: fewer images of a class",
        NOT_YET,
        f"{here('fedproto-figure3')} makes it.",
    ),
    Entry(
        "fedproto-figure4",
        FEDPROTO,
        "Fig. 4: λ, on FEMNIST",
        NOT_YET,
        f"{here('fedproto-figure4')} makes it, with digits only.",
    ),
    Entry(
        "fednh-table1",
        FEDNH,
        "Table 1: accuracy on Cifar10, Cifar100, TinyImageNet",
        SMALLER,
        "A subset of Cifar10, 60 rounds, four methods: python scripts/fednh_table.py table1",
    ),
    Entry(
        "fednh-table2", FEDNH, "Table 2: fairness", SMALLER, "In the same table: python scripts/fednh_table.py table1"
    ),
    Entry(
        "fednh-table3",
        FEDNH,
        "Table 3: 30 % of the clients a round",
        NOT_YET,
        "protofed run recipes/fednh-cifar10.toml --set run.sample=0.3 is one of its runs.",
    ),
    Entry(
        "fednh-figure1",
        FEDNH,
        "Fig. 1 and 5: the spiral, centralised",
        PAPER_SCALE,
        "python scripts/spiral_pictures.py",
    ),
    Entry("fednh-figure2", FEDNH, "Fig. 2: the spiral, federated", PAPER_SCALE, "python scripts/spiral_pictures.py"),
    Entry(
        "fednh-figure3",
        FEDNH,
        "Fig. 3, 7 and 8: similarity of prototypes, Cifar100",
        SMALLER,
        "protofed draw DIR --what similarity; docs/gallery.md has the run.",
    ),
    Entry("fednh-figure4", FEDNH, "Fig. 4: rho", SMALLER, "30 rounds, one seed: python scripts/fednh_table.py rho"),
    Entry(
        "fednh-figure6",
        FEDNH,
        "Fig. 6: representations of clients",
        SMALLER,
        "protofed draw DIR --what embeddings; docs/gallery.md.",
    ),
    Entry(
        "protomargin-table2",
        PROTOMARGIN,
        "Table 2 and Fig. 2: synthetic, MNIST",
        NOT_YET,
        "python scripts/protomargin_table.py table2 makes it.",
    ),
    Entry(
        "protomargin-table2-femnist",
        PROTOMARGIN,
        "Table 2: FEMNIST, CelebA",
        CANNOT,
        "The data cannot be had; recipes/protomargin-femnist.toml and -pets.toml are stand-ins.",
    ),
    Entry(
        "protomargin-table3",
        PROTOMARGIN,
        "Table 3: ablations on MNIST",
        NOT_YET,
        "python scripts/protomargin_table.py table3 makes it.",
    ),
    Entry(
        "protomargin-table4",
        PROTOMARGIN,
        "Table 4, Fig. 3 and 4: margins, MMD and FFD",
        NOT_YET,
        "python scripts/protomargin_table.py table4 pictures makes it.",
    ),
    Entry(
        "protomargin-figure5",
        PROTOMARGIN,
        "Fig. 5, 6, S1, S3, S4: segmentation of Pascal VOC",
        CANNOT,
        "Pascal VOC 2012 and pre-trained MobileNet cannot be had; segmentation is not built yet.",
    ),
    Entry(
        "protomargin-figureS2",
        PROTOMARGIN,
        "Fig. S2: distribution of attention",
        NOT_YET,
        "python scripts/protomargin_table.py pictures makes it.",
    ),
    Entry("mpfedcl-table2", MPFEDCL, "Table II: numbers sent", PAPER_SCALE, "Tested in tests/test_mpfedcl.py."),
    Entry(
        "mpfedcl-table5",
        MPFEDCL,
        "Table V: Digit-5 by domain",
        NOT_YET,
        "python scripts/mpfedcl_table.py domains makes it.",
    ),
    Entry(
        "mpfedcl-table6", MPFEDCL, "Table VI: label skew; MNIST", PAPER_SCALE, "python scripts/mpfedcl_table.py mnist"
    ),
    Entry(
        "mpfedcl-table6-digit5",
        MPFEDCL,
        "Table VI: label skew; Digit-5, Office-10",
        NOT_YET,
        "python scripts/mpfedcl_table.py labels makes it, with an encoder of our own.",
    ),
    Entry("mpfedcl-table6-domainnet", MPFEDCL, "Table VI: DomainNet", CANNOT, "The data cannot be had."),
    Entry(
        "mpfedcl-table7",
        MPFEDCL,
        "Tables VII and VIII: Dirichlet 0.5 and domains",
        NOT_YET,
        "python scripts/mpfedcl_table.py labels domains makes Table VII.",
    ),
    Entry("mpfedcl-figure5", MPFEDCL, "Fig. 5: K", NOT_YET, "python scripts/mpfedcl_table.py k makes it."),
    Entry("mpfedcl-figure8", MPFEDCL, "Fig. 8: alpha", NOT_YET, "python scripts/mpfedcl_table.py alpha makes it."),
    Entry(
        "mpfedcl-figure9",
        MPFEDCL,
        "Fig. 9: 5 to 40 clients",
        NOT_YET,
        "python scripts/mpfedcl_table.py clients makes it.",
    ),
    Entry(
        "mpfedcl-figure10",
        MPFEDCL,
        "Fig. 1 and 10: embeddings, accuracy over rounds",
        NOT_YET,
        "protofed draw DIR --what tsne and --what curves draw any run so.",
    ),
)
