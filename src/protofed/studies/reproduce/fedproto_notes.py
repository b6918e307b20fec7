"""Known differences of the studies of FedProto from its paper."""

from __future__ import annotations

FEDPROTO_ALL_TABLES = (
    "The paper does not give the settings of its baselines. FeSEM's centres and FedProx's mu are the defaults of "
    "docs/methods, FedPer and FedRep share what their numbers sent in the paper imply, and all methods have the same "
    "rounds, batches and learning rate.",
    "In its authors' code, FedProto's ± is the spread of a running average over clients; the paper does not say how "
    "the baselines' was computed. Ours is given in both ways.",
    "Every seed has its own split of the data, which all methods share; the paper does not say how many runs it had.",
    "n is drawn uniformly within ± stdev, and is at least 2, as in the authors' code; the paper calls it an average.",
    "fedproto predicts by the nearest prototype among the client's own classes (Eq. 4). Heads, also those of the same "
    'runs ("by head"), choose among all classes, as in the authors\' code, except in the rows "own classes": there '
    "they choose among the classes of the client's training examples. Only these rows and the prototypes answer the "
    "same question.",
    "The paper has one number sent for n = 3, 4 and 5; FedProto's is that of n = 4.",
)
"""In all tables."""
FEDPROTO_AUTHORS_CODE = (
    "fedavg equal and fesem 2 groups are the baselines as functions of the authors' repository have them: a plain mean "
    "of all clients, and of two groups by a client's number of classes. Its FedProx has a term without gradient "
    "(method.term=constant), so that its row would be that of fedavg equal. The published main program calls none of "
    "them; whether the paper did is not known.",
)
FEDPROTO_TWO_TABLES = (
    "The paper has two figures for FedAvg at n = 3: 95.04 in Table 1, which is shown here, and 91.40 in Table 2, with "
    "which FedAvg would be the worst method.",
)
FEDPROTO_DIGITS = (
    "FEMNIST's letters and writers are not available here. 5,997 handwritten digits of 12 clients stand in for them: "
    "10 classes instead of 62, so that about six clients hold a class instead of about one, and 30 images per class "
    "and client instead of 100, which every split can supply. fedavg sends far less than the paper's 800,000 numbers "
    "per client, which 62 outputs alone do not explain: the paper's images must be larger than 28x28 pixels.",
)
FEDPROTO_HOLDERS = (
    "The paper's Fig. 4 is on FEMNIST, which has 62 classes, so that about one client holds each. Here CIFAR-100 has "
    "few holders per class and CIFAR-10 many, with the same encoder, net, and number of images per class and client. "
    "The images and the classes differ as well, so that only the shape along λ can be compared.",
)
FEDPROTO_FEATURES = (
    "A frozen EfficientNet-Lite0, trained on ImageNet, stands in for the ResNet18 that starts from ImageNet weights in "
    "the paper and is trained: clients train a dense layer of 512 units and a head on its 1,280 features. In fedproto "
    "mixed half of the clients have another dense layer of 256 units before it, where the paper varies strides.",
    "10,000 of CIFAR-10's 50,000 training images, 60 instead of 100 images per class and client, 15 test images per "
    "class and batches of 32, as in the authors' code (the paper has batches of 8). Its crops and flips cannot be "
    "applied to features that are computed once.",
)
FEDPROTO_SUBSET = (
    "10,000 of CIFAR-10's 50,000 training images, and 60 instead of 100 images per class and client. ResNet18 with "
    "group norm, trained from scratch; the paper has batch norm and weights pre-trained on ImageNet, with an accuracy "
    "of 27.55 % before training. Batches of 8, as in the paper; the command of its authors' code has 32.",
)
