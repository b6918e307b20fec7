"""The table of docs/data.md, from one longer run per dataset.

    python scripts/data_table.py

Runs go to runs/data; finished runs are not repeated. All of them take about half an hour on one core.
"""

from __future__ import annotations

from pathlib import Path

from series import result_of

from protofed.experiment.wording import dataset_title

NWAY = "partition.shots=40 train.batch=32 train.lr=0.02 train.momentum=0.9 run.rounds=15"
RUNS = {
    "cifar10": f"net.name=cnn_fednh {NWAY} partition.shots=80",
    "cifar100": "net.name=cnn_fednh partition.ways=5 partition.shots=6 partition.test=5 train.lr=0.02 train.momentum=0.9 run.rounds=40",
    "digit5": "net.name=lenet partition.name=by_domain train.batch=32 run.rounds=8",
    "digits": "",
    "femnist": "net.name=cnn partition.name=natural train.batch=32 run.rounds=30",
    "heart_disease": "net.dim=16 partition.name=natural run.rounds=10",
    "mnist": f"net.name=cnn {NWAY} partition.shots=100",
    "mnist_m": "net.name=lenet method.name=fedavg partition.name=dirichlet data.clients=10 train.batch=32 train.momentum=0.9 train.lr=0.02 run.rounds=30",
    "office_caltech10": "net.name=convnet net.channels=[16,32,64] partition.name=by_domain train.batch=32 train.momentum=0.9 train.lr=0.02 run.rounds=20",
    "pets": "net.name=convnet net.channels=[16,32,64] partition.shots=40 partition.stdev=0 data.clients=5 train.batch=16 train.lr=0.02 train.momentum=0.9 train.augment=['crop','flip'] run.rounds=40",
    "spiral": "net.name=mlp_spiral method.name=fedavg method.weights=equal partition.name=dirichlet data.clients=100 run.sample=0.1 run.rounds=60 train.epochs=5 train.batch=64 train.lr=0.1 train.momentum=0.9 train.weight_decay=1e-5 train.decay=0.99 train.clip=10",
    "spiral_imbalanced": "net.name=mlp_spiral method.name=local partition.name=pooled run.rounds=201 train.batch=5000 train.lr=0.1 train.momentum=0.9 train.weight_decay=1e-5 train.decay=0.99",
    "svhn": "net.name=convnet partition.name=pooled method.name=local train.batch=32 train.optimiser=adam train.lr=0.001 run.rounds=12",
    "synthdigits": "net.name=convnet partition.name=pooled method.name=local train.batch=32 train.lr=0.02 train.momentum=0.9 run.rounds=12",
    "synthetic": "net.name=mlp_synthetic partition.name=pooled method.name=local train.batch=32 train.lr=0.02 train.momentum=0.9 run.rounds=30",
    "tiny_imagenet": "net.name=convnet net.channels=[16,32,64] partition.shots=30 data.clients=10 train.batch=32 train.lr=0.02 train.momentum=0.9 run.rounds=20",
    "uci_har": "net.name=cnn1d partition.name=natural train.batch=32 run.rounds=15",
    "usps": f"net.name=cnn {NWAY}",
}


def main() -> None:
    rows = []
    for name, words in RUNS.items():
        sets = [f"data.name={name}", *words.split()]
        out = Path("runs/data") / name
        result = result_of(out, None, " ".join(sets))
        server = result["global"]["accuracy"]
        rows.append(
            f"| {dataset_title(name, result['remark'])} | {result['method']}, {result['clients']} | "
            f"{100 * result['accuracy']['head']['mean']:.1f} % | {100 * result['majority']:.1f} % | "
            f"{'' if server is None else f'{100 * server:.1f} %'} | {result['seconds']['total'] / 60:.1f} min | "
            f"`--set {' --set '.join(sets)}` |"
        )
    print(
        "| dataset | method, clients | by head | majority | server | time | protofed run |\n|---|---|---|---|---|---|---|"
    )
    print("\n".join(rows))


if __name__ == "__main__":
    main()
