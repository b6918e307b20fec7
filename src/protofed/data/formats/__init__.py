"""Readers of datasets in their published form, for `protofed data convert`: one file per format.

`PUBLISHED_FORMATS` is the table of all of them. A reader gets the published folder or file and returns the arrays of
an npz file.
"""

from __future__ import annotations

from protofed.data.formats.celeba import celeba
from protofed.data.formats.cifar import cifar10, cifar100
from protofed.data.formats.emnist import emnist, mnist_idx
from protofed.data.formats.folders import domainnet, image_folder, office_folders
from protofed.data.formats.leaf_json import femnist_images, leaf_arrays
from protofed.data.formats.mnist_m import mnist_m
from protofed.data.formats.pascal_voc import voc_arrays
from protofed.data.formats.published import Published
from protofed.data.formats.svhn import svhn

_NOT_STATED = "not stated where it is published"

PUBLISHED_FORMATS: dict[str, Published] = {
    "celeba": Published(
        "Faces of 10,177 celebrities with 40 attributes; a celebrity is a client, an attribute the class.",
        "mmlab.ie.cuhk.edu.hk/projects/CelebA.html; LEAF's users: github.com/TalwalkarLab/leaf",
        "non-commercial research only",
        "202,599 images, 1.4 GB (img_align_celeba.zip)",
        "folder with img_align_celeba/, identity_CelebA.txt and list_attr_celeba.txt, or LEAF's data folder",
        celeba,
        any_size=True,
    ),
    "cifar10": Published(
        "32x32x3 photographs of 10 classes.",
        "www.cs.toronto.edu/~kriz/cifar.html",
        _NOT_STATED,
        "50,000 / 10,000 images, 163 MB",
        "folder cifar-10-batches-py (python version) or cifar-10-batches-bin (binary version)",
        cifar10,
        named=True,
    ),
    "cifar100": Published(
        "32x32x3 photographs of 100 classes in 20 superclasses.",
        "www.cs.toronto.edu/~kriz/cifar.html",
        _NOT_STATED,
        "50,000 / 10,000 images, 161 MB",
        "folder cifar-100-python or cifar-100-binary",
        cifar100,
        named=True,
    ),
    "domainnet": Published(
        "Photographs and drawings of 345 classes in six domains; a domain is a client.",
        "ai.bu.edu/M3SDA",
        "see the notice on fair use there",
        "586,575 images (cleaned version), 17.5 GB",
        "folder with clipart/, infograph/, ... and the lists clipart_train.txt, clipart_test.txt, ...",
        domainnet,
        any_size=True,
    ),
    "emnist": Published(
        "28x28 handwritten characters in six splits; in the .mat files a writer is a client.",
        "www.nist.gov/itl/products-and-services/emnist-dataset",
        _NOT_STATED,
        "70,000 to 814,255 images by split; 0.5 GB (gzip.zip), all splits together",
        "file emnist-SPLIT.mat, or folder with the IDX files and the mapping of one split",
        emnist,
    ),
    "femnist": Published(
        "28x28 handwritten characters of 62 classes; a writer is a client.",
        "github.com/TalwalkarLab/leaf (data/femnist, made by its script)",
        "code of LEAF: BSD 2-clause; images: NIST Special Database 19",
        "805,263 images of 3,550 writers",
        "LEAF's folder data with train/*.json and test/*.json, or all_data/*.json",
        femnist_images,
    ),
    "images": Published(
        "Any folder of images; a domain is a client.",
        "your own",
        "your own",
        "any",
        "folder with class/image.png or domain/class/image.png",
        image_folder,
        any_size=True,
    ),
    "leaf": Published(
        "JSON files of LEAF or FedProx, such as FedProx's MNIST and synthetic data; a user is a client.",
        "github.com/TalwalkarLab/leaf, github.com/litian96/FedProx",
        "code: BSD 2-clause (LEAF), MIT (FedProx)",
        "by dataset",
        "folder with train/*.json and test/*.json (data.name=leaf reads it without conversion, too)",
        leaf_arrays,
    ),
    "mnist": Published(
        "28x28 handwritten digits.",
        "yann.lecun.com/exdb/mnist",
        _NOT_STATED,
        "60,000 / 10,000 images, 12 MB",
        "folder with the four IDX files (data.name=mnist reads it without conversion, too)",
        mnist_idx,
        named=True,
    ),
    "mnist_m": Published(
        "Digits on photographs, 32x32x3.",
        "yaroslav.ganin.net",
        _NOT_STATED,
        "59,001 / 9,001 images",
        "folder with mnist_m_train/, mnist_m_test/ and their lists of labels",
        mnist_m,
        named=True,
    ),
    "office_caltech10": Published(
        "Photographs of 10 classes in four domains, resized to 64x64x3; a domain is a client.",
        "people.eecs.berkeley.edu/~jhoffman/domainadapt",
        _NOT_STATED,
        "2,533 images",
        "folder with amazon/, caltech10/, dslr/ and webcam/, each with one folder per class",
        office_folders,
        named=True,
    ),
    "svhn": Published(
        "House numbers, 32x32x3 (format 2, cropped digits).",
        "ufldl.stanford.edu/housenumbers",
        "non-commercial use only",
        "73,257 / 26,032 images, 246 MB",
        "folder with train_32x32.mat and test_32x32.mat",
        svhn,
        named=True,
    ),
    "voc": Published(
        "Pascal VOC 2012 at 128x128x3, images of one class with a class per pixel.",
        "host.robots.ox.ac.uk/pascal/VOC/voc2012",
        "images: terms of use of Flickr",
        "2,913 images with masks, 2 GB (the complete archive)",
        "folder VOC2012 (data.name=voc reads it without conversion, too)",
        voc_arrays,
    ),
}
