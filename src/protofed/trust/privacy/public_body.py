"""The body of a frozen encoder: all clients have the same one, from the start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protofed.contract import checked
from protofed.net import selected

if TYPE_CHECKING:
    from protofed.core import AnyMethod, Client
    from protofed.trust.privacy.section import PrivacySection


def state_before_training(method: AnyMethod, privacy: PrivacySection, client: Client) -> Any:
    """What a client keeps that has not trained yet. With `privacy.encoder = "frozen"`, its body is the public one.

    `client` is the client in round 0.
    """
    kept = checked(method, "join", method.join(client))
    if not (privacy.is_on and privacy.encoder == "frozen"):
        return kept
    return kept._replace(params=kept.params | selected(client.fresh_params(same=True), "body."))
