"""What the server gets to see in a round: all uploads, or their secure total."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.messages import is_readable
from protofed.trust.secure_sum.field import SecureSumError
from protofed.trust.secure_sum.totals import summed_numbers, summed_upload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from protofed.core import Upload
    from protofed.engines.engine import Report
    from protofed.experiment.config import Config


class SecureRound:
    """The secure sums of a run, if it has them. In a deployed federation `summed` asks the clients."""

    def __init__(self, config: Config) -> None:
        self.is_on, self.method, self.threshold = config.privacy.secure_sum, config.method, config.privacy.threshold
        self.summed: Callable[[int, Sequence[Upload[Any]], Iterable[int]], Upload[Any]] = self._summed_here
        self.problem = ""  # why there is no total

    def _summed_here(self, round: int, uploads: Sequence[Upload[Any]], clients: Iterable[int]) -> Upload[Any]:
        return summed_upload(self.method, uploads, clients, round, self.threshold)

    def seen(self, round: int, uploads: list[Upload[Any]], clients: Iterable[int]) -> list[Upload[Any]]:
        """The uploads, or with secure sums one upload in place of all; none if there are too few for a total.

        `clients`: all that take part in the round.
        """
        self.problem = ""
        if not self.is_on:
            return uploads
        try:
            if not uploads:
                raise SecureSumError("no upload can be used")
            return [self.summed(round, uploads, clients)]
        except SecureSumError as problem:
            self.problem = str(problem)
            return []

    def sent_messages(self, reports: Sequence[Report], rejected: Mapping[int, str]) -> list[Any]:
        """The uploads as they are sent, for their size: with secure sums a number of 8 bytes per summed number.

        Those that were rejected were sent, too. One that cannot be read has no size that could be counted.
        """
        uploads = [report.upload for report in reports]
        messages = [one.message for one in uploads if one.client not in rejected or is_readable(one.message)]
        if not self.is_on or all(isinstance(message, Tensor) for message in messages):
            return messages
        return [torch.empty(summed_numbers(self.method, message), dtype=torch.long) for message in messages]


def refuse_attackers(config: Config) -> None:
    """Raise an error if attackers are to change uploads that a deployed server never sees."""
    if config.privacy.secure_sum and config.attack.share:
        raise UserError(
            "attack.share: in a deployed federation with privacy.secure_sum the server sees no upload that an attacker "
            "could have changed. Set attack.share = 0, or use a run on one machine."
        )
