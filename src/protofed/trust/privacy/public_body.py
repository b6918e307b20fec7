"""The body of a frozen encoder: all clients have the same one, from the start, and train only their heads."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from protofed.contract import checked
from protofed.core import Phase
from protofed.net import selected
from protofed.training import as_trained, train_client

if TYPE_CHECKING:
    from protofed.core import AnyMethod, Client, Trained
    from protofed.training import Outcome, TrainSection
    from protofed.trust.privacy.section import PrivacySection


def has_public_body(privacy: PrivacySection) -> bool:
    """Whether the clients of a run have one body that does not train."""
    return privacy.is_on and privacy.encoder == "frozen"


def state_before_training(method: AnyMethod, privacy: PrivacySection, client: Client, seed: int) -> Any:
    """What a client keeps that has not trained yet: its body is the public one if there is one.

    `seed` is the run's, from which the public body is drawn; that of a newcomer's `client` may be another.
    """
    kept = checked(method, "join", method.join(client))
    if not has_public_body(privacy):
        return kept
    public = replace(client, seed=seed).fresh_params(same=True)
    return kept._replace(params=kept.params | selected(public, "body."))


def train_head_alone(
    method: AnyMethod, client: Client, kept: Any, down: Any, training: TrainSection
) -> tuple[Trained[Any, Any], Outcome]:
    """A client's training in which the body stays as it is: only the head trains, which stays at the client."""
    start, prepared = method.receive(kept, down), method.prepare(down)
    client.net.check(start)
    epochs = training.local_epochs(client.num_examples, client.net.has_batch_norm)
    head_alone = (Phase(epochs, ("head.",)),)
    outcome = train_client(method, client, client.data, start, prepared, kept, head_alone, training)
    return as_trained(client, kept, down, start, outcome, training), outcome
