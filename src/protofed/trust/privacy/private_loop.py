"""The engine of private runs: clients train one after the other, and noise is added to what they upload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.nn.functional as F

from protofed.core import Trained, Upload
from protofed.engines.loop import Loop
from protofed.errors import UserError
from protofed.training import Outcome, as_trained, take_part
from protofed.trust.privacy.noise import DerivedNoise
from protofed.trust.privacy.private_training import train_privately
from protofed.trust.privacy.public_body import state_before_training, train_head_alone
from protofed.trust.privacy.release import noisy_prototypes
from protofed.trust.privacy.rules import planned_epochs, promise_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from protofed.core import AnyMethod, Client, Net
    from protofed.engines.engine import Clients, Report, RoundPlan
    from protofed.examples import Examples
    from protofed.training import TrainSection
    from protofed.trust.privacy.noise import Noise
    from protofed.trust.privacy.section import PrivacySection


class PrivateLoop(Loop):
    """Trains clients one by one as [privacy] says. `noise` makes a client's source of random numbers for a round."""

    def __init__(
        self,
        clients: Clients,
        method: AnyMethod,
        training: TrainSection,
        seed: int,
        privacy: PrivacySection,
        noise: Callable[[Client], Noise] = DerivedNoise,
    ) -> None:
        super().__init__(clients, method, training, seed)
        self.privacy, self.noise = privacy, noise
        self.promise = promise_of(method, privacy)
        check_private_data(clients.train, self.promise.formal)

    def state_before_training(self, client: Client) -> Any:
        return state_before_training(self.method, self.privacy, client, self.seed)

    def train_one(self, round: int, number: int, down: Any, plan: RoundPlan) -> Report:
        """Train one client, and add noise to its upload."""
        client, kept = self.client(number, round)
        noise = self.noise(client)
        training = self.training.with_work(self.work(number, plan))
        trained, outcome = self._trained(client, kept, down, training, noise)
        report = self.finish(number, trained, outcome, plan)
        return report._replace(upload=self._noisy_upload(trained, report.upload, noise))

    def _trained(
        self, client: Client, kept: Any, down: Any, training: TrainSection, noise: Noise
    ) -> tuple[Trained[Any, Any], Outcome]:
        """The training that the guarantee allows."""
        method, encoder = self.method, self.privacy.encoder
        if encoder == "none":
            return take_part(method, client, kept, down, training)
        _require_no_batch_norm(client.net, encoder)
        if encoder == "frozen":
            return train_head_alone(method, client, kept, down, training)
        start, prepared = method.receive(kept, down), method.prepare(down)
        client.net.check(start)
        phases = method.phases(planned_epochs(self.privacy, training))
        outcome = train_privately(method, client, start, prepared, kept, phases, training, self.privacy, noise)
        return as_trained(client, kept, down, start, outcome, training), outcome

    def _noisy_upload(self, trained: Trained[Any, Any], upload: Upload[Any], noise: Noise) -> Upload[Any]:
        """The upload with noisy prototypes, and with numbers of examples and steps that are noisy or public."""
        privacy, method = self.privacy, self.method
        num_examples = privacy.examples
        if self.promise.means:
            z, y = trained.features()
            compared = method.compared_embeddings(z)
            assert compared is not None
            prototypes = noisy_prototypes(compared, y, trained.net.classes, privacy, noise)
            num_examples = round(float(prototypes.support.sum()))
            if getattr(method, "unit_means", False):
                prototypes = prototypes._replace(mean=F.normalize(prototypes.mean, dim=-1))
            upload = upload._replace(message=upload.message._replace(prototypes=prototypes))
        steps = upload.steps if privacy.encoder == "dp-sgd" else 0
        return upload._replace(num_examples=num_examples, steps=steps)


def check_private_data(train: Sequence[Examples], formal: bool) -> None:
    """Raise an error if the sums over a client's examples have no bound, or its inputs depend on its data."""
    if any(examples.mask is not None for examples in train):
        raise UserError(
            "privacy.noise: with masks every image has many labelled pixels, so that one image can change a class sum "
            "without a bound. Leave [privacy] out, or use data with one label per image."
        )
    inputs = {str(examples.input) for examples in train}
    if formal and len(inputs) > 1:
        raise UserError(
            "privacy.encoder: the inputs of clients are normalised by their own data, so that one example changes all "
            'inputs of its client. Use constants (data.normalise = "dataset"), or privacy.encoder = "none".'
        )


def _require_no_batch_norm(net: Net, encoder: str) -> None:
    """Raise an error if the net mixes the examples of a batch, and keeps statistics of them."""
    if net.has_batch_norm:
        raise UserError(
            f'privacy.encoder: "{encoder}" cannot be used with net {net.name}: it has batch norm, which mixes the '
            "examples of a batch and keeps their statistics. Use a net without it, such as cnn."
        )
