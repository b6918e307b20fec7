"""Every table and figure of the four papers, whether it was run here, and how."""

from __future__ import annotations

PAPER_SCALE, SMALLER = "run at paper scale", "run in a smaller or changed form"
PARTLY, IN_PART = "run in part, in a smaller or changed form", "run in part, at paper scale"
NOT_YET, CANNOT = "not run yet", "cannot be run here"
_COMMAND = "`protofed reproduce`"
_SPIRAL = "python scripts/spiral_pictures.py"
_ENCODER = "with an encoder trained on ImageNet"
_ON_A_SUBSET = f"{_COMMAND} can make it on a subset, in hours"


_FROM_TABLE2 = tuple(
    (f"{name}{scale}", f"{shows}; {data}", state, f"{_COMMAND} {makes} it from the runs of Table 2")
    for name, shows in (
        ("table4", "Table 4: margins, FFD"),
        ("figure2", "Fig. 2: curves"),
        ("figure3", "Fig. 3, 4: margins, MMD"),
        ("figureS2", "Fig. S2: attention"),
    )
    for scale, data, state, makes in (
        ("", "synthetic", IN_PART, "makes"),
        ("-mnist", "MNIST", PARTLY if name == "figureS2" else NOT_YET, "makes" if name == "figureS2" else "can make"),
        ("-small", "MNIST, small", SMALLER, "makes"),
    )
)
"""Tables and figures of prototype-guided FL that need no training of their own."""
TABLES_AND_FIGURES: dict[tuple[str, str], tuple[tuple[str, str, str, str], ...]] = {
    ("fedproto", "FedProto (Tan et al. 2022)"): (
        (
            "table1",
            "Table 1, MNIST part: stdev 2",
            IN_PART,
            f"{_COMMAND} makes it; docs/results/fedproto.md has the results, and says which rows that the paper does "
            "not have were not run yet",
        ),
        (
            "table2",
            "Table 2: MNIST, stdev 3",
            IN_PART,
            f"{_COMMAND} makes it in hours; so far it was run for fedavg, fedproto and local",
        ),
        (
            "table3",
            "Tables 1 and 3: FEMNIST",
            PARTLY,
            f"{_COMMAND} makes a stand-in with handwritten digits; so far for fedavg, fedproto and local",
        ),
        (
            "table4",
            "Tables 1 and 4: CIFAR-10",
            PARTLY,
            f"{_COMMAND} makes a stand-in {_ENCODER}, which stays frozen; so far for fedavg, fedproto and local",
        ),
        (
            "table4-resnet",
            "Tables 1 and 4: CIFAR-10, ResNet18",
            NOT_YET,
            f"{_COMMAND} can make it in days, on a subset and with nets that are not pre-trained",
        ),
        (
            "local",
            "Tables 1 and 2: how long Local trained",
            PAPER_SCALE,
            f"{_COMMAND} makes it in half an hour",
        ),
        (
            "figure2",
            "Fig. 2: t-SNE of four methods",
            PAPER_SCALE,
            f"{_COMMAND} makes it, with the scatter of embeddings",
        ),
        (
            "figure3",
            "Fig. 3: fewer images per class",
            PAPER_SCALE,
            f"{_COMMAND} makes it, with training alone, in an hour",
        ),
        (
            "figure4",
            "Fig. 4: λ, on FEMNIST",
            SMALLER,
            f"{_COMMAND} makes a stand-in with handwritten digits only and fewer images",
        ),
        (
            "figure4-holders",
            "Fig. 4 with few holders per class",
            SMALLER,
            f"{_COMMAND} makes it {_ENCODER}, on CIFAR-100 (few holders) and CIFAR-10 (many)",
        ),
    ),
    ("fednh", "FedNH (Dai et al. 2023)"): (
        (
            "table1",
            "Table 1: Cifar10, Dir(0.3)",
            PARTLY,
            f"{_COMMAND} makes it on a subset, in hours; docs/results/fednh.md says which cells have been run",
        ),
        ("table1-dir1", "Table 1: Cifar10, Dir(1.0)", NOT_YET, _ON_A_SUBSET),
        ("table1-cifar100", "Table 1: Cifar100, Dir(0.3)", NOT_YET, _ON_A_SUBSET),
        ("table1-cifar100-dir1", "Table 1: Cifar100, Dir(1.0)", NOT_YET, _ON_A_SUBSET),
        (
            "table1-tiny",
            "Table 1: TinyImageNet",
            NOT_YET,
            "run recipes/fednh-tiny.toml, which has 25 of 200 classes and takes days",
        ),
        (
            "table2",
            "Table 2: fairness, Cifar10",
            PARTLY,
            f"{_COMMAND} makes it on a subset, from the runs of Table 1",
        ),
        ("table3", "Table 3: 30 % of the clients", NOT_YET, f"{_COMMAND} can make it on a subset, in days"),
        (
            "figure1",
            "Fig. 1, 5: the spiral, centralised",
            PAPER_SCALE,
            f"`{_SPIRAL}` makes them with the settings of the authors' notebook",
        ),
        (
            "figure2",
            "Fig. 2: the spiral, federated",
            SMALLER,
            f"`{_SPIRAL}` makes it; the paper does not give the batch size and the number of rounds",
        ),
        (
            "figure3",
            "Fig. 3, 7, 8: similarity of prototypes",
            SMALLER,
            "`protofed draw DIR --what similarity` and `--what blocks` draw them from runs of any method with a linear "
            "head; docs/gallery.md has those of short runs on a subset",
        ),
        ("figure4", "Fig. 4: rho", NOT_YET, f"{_COMMAND} can make it with 60 rounds and one seed"),
        (
            "figure6",
            "Fig. 6: representations of clients",
            SMALLER,
            "`protofed draw DIR --what embeddings` draws it from runs; docs/gallery.md has that of short runs",
        ),
        (
            "protocol",
            "the protocol of the authors' code",
            NOT_YET,
            f"{_COMMAND} can make it next to figures of their code on the same subset",
        ),
    ),
    ("protomargin", "Prototype-guided FL (Michieli & Ozay 2021)"): (
        (
            "table1",
            "Table 1: statistics of the data",
            PARTLY,
            f"{_COMMAND} makes the rows of synthetic and MNIST in seconds, with data that are not the authors' own",
        ),
        (
            "table2",
            "Table 2: synthetic",
            IN_PART,
            f"{_COMMAND} makes it in hours; docs/results/protomargin.md says which cells have been run",
        ),
        (
            "table2-clients",
            "Table 2: synthetic, by client",
            IN_PART,
            f"{_COMMAND} makes it from the runs of Table 2; the paper does not have it",
        ),
        (
            "table2-mnist",
            "Table 2: MNIST",
            PARTLY,
            f"{_COMMAND} makes it with 20 epochs and a dense net, in a day; so far four cells at slow 0.8",
        ),
        (
            "table2-small",
            "Table 2: MNIST, small",
            SMALLER,
            f"{_COMMAND} makes it with 3 epochs, 10,000 images and a dense net, in an hour",
        ),
        (
            "table3",
            "Table 3: ablations on MNIST",
            PARTLY,
            f"{_COMMAND} makes it with 20 epochs and a dense net, in a day; docs/results/protomargin.md says which "
            "cells have been run",
        ),
        (
            "table3-cnn",
            "Table 3 with the paper's net",
            NOT_YET,
            "run recipes/protomargin-mnist.toml, which has the paper's net, in hours per run",
        ),
        (
            "table3-small",
            "Table 3: MNIST, small",
            PARTLY,
            f"{_COMMAND} makes it with 3 epochs, 10,000 images and a dense net, in hours; docs/results/protomargin.md "
            "says which cells have been run",
        ),
        *_FROM_TABLE2,
        (
            "femnist",
            "FEMNIST and CelebA in all of these",
            CANNOT,
            "FEMNIST's letters and CelebA are not available here; `protofed data convert` reads them where they are; "
            "recipes/protomargin-femnist.toml has handwritten digits instead",
        ),
        (
            "figure5",
            "Fig. 5: segmentation, macro classes",
            SMALLER,
            f"{_COMMAND} makes it on pets with masks instead of Pascal VOC, with 30 rounds and a small net",
        ),
        (
            "figure5-breeds",
            "Fig. 5: segmentation, all classes",
            NOT_YET,
            f"{_COMMAND} can make it in 4 CPU minutes per run, on pets with masks instead of Pascal VOC",
        ),
        (
            "encoder",
            "Section 5.2: segmentation from an encoder trained on ImageNet",
            SMALLER,
            f"{_COMMAND} makes it on pets with masks instead of Pascal VOC, with 6 rounds and one seed",
        ),
        (
            "figure6",
            "Fig. 6, S1, S3, S4: maps, partitions, t-SNE of pixels",
            SMALLER,
            "`protofed draw DIR --what maps`, `--what partition` and `--what tsne` draw them from runs; "
            "docs/results/segmentation.md has some",
        ),
    ),
    ("mpfedcl", "MP-FedCL (Qiao et al. 2023)"): (
        (
            "table2",
            "Table II: numbers sent, MNIST",
            PAPER_SCALE,
            "every run of mpfedcl counts them; docs/results/mpfedcl.md has the numbers",
        ),
        ("table5", "Table V: Digit-5 by domain", SMALLER, f"{_COMMAND} makes it {_ENCODER} and all images"),
        (
            "table5-few",
            "Table V with 10 images per class",
            SMALLER,
            f"{_COMMAND} makes it {_ENCODER} and 10 images per class, our guess, with and without a ReLU on the logits",
        ),
        (
            "table6",
            "Table VI: label skew, MNIST",
            PAPER_SCALE,
            f"{_COMMAND} makes it with and without the ReLU that the paper's net has on its logits",
        ),
        (
            "table6-digit5",
            "Table VI: Digit-5",
            PARTLY,
            f"{_COMMAND} makes it {_ENCODER}, in two readings; so far for mp, sp and fedavg",
        ),
        ("table6-office", "Table VI: Office-10", SMALLER, f"{_COMMAND} makes it {_ENCODER}, in two readings"),
        ("table7", "Table VII: Digit-5 and Office-10", SMALLER, f"{_COMMAND} makes it {_ENCODER}"),
        ("table8", "Table VIII: equal time", SMALLER, f"{_COMMAND} makes it {_ENCODER}, with 20 seconds per run"),
        ("figure1", "Fig. 1: embeddings", SMALLER, f"{_COMMAND} makes it on MNIST; the paper does not name its data"),
        ("figure5", "Fig. 5: K", SMALLER, f"{_COMMAND} makes it {_ENCODER}, on validation sets"),
        ("figure8", "Fig. 8: alpha", SMALLER, f"{_COMMAND} makes it {_ENCODER}, on Office-10"),
        ("figure9", "Fig. 9: 5 to 40 clients", SMALLER, f"{_COMMAND} makes it on MNIST, and not on Digit-5"),
        ("figure10", "Fig. 10: curves", SMALLER, f"{_COMMAND} makes it {_ENCODER}"),
        (
            "domainnet",
            "DomainNet in all of these",
            CANNOT,
            "DomainNet is not available here; `protofed data convert` reads it where it is",
        ),
    ),
}
"""By paper (short and full name): the name, what it shows, one of the states above, and how it is made, or why not."""
