"""What the server gets to see in a round: all uploads, or their secure total."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protofed.errors import UserError
from protofed.trust.secure_sum.totals import summed_upload

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from protofed.core import Upload
    from protofed.experiment.config import Config


def as_the_server_sees_them(
    config: Config, round: int, uploads: Sequence[Upload[Any]], clients: Iterable[int]
) -> Sequence[Upload[Any]]:
    """The uploads, or with secure sums one upload in place of all. `clients`: all that take part in the round."""
    if not config.privacy.secure_sum:
        return uploads
    return [summed_upload(config.method, uploads, clients, round, config.privacy.threshold)]


def refuse_secure_sum(config: Config) -> None:
    """Raise an error if an experiment of a deployed federation has secure sums: its server would see every upload."""
    if config.privacy.secure_sum:
        raise UserError(
            "privacy.secure_sum: it is not available in a deployed federation yet, where the server sees every upload. "
            "Set privacy.secure_sum = false."
        )
