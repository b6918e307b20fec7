"""Methods whose server has a model: clients train it, and the server can predict with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.core import Net, Params, Scores


class SharedModel:
    """Mixin for methods whose messages and server state have the field `params`."""

    def receive(self, kept: Any, down: Any) -> Params:
        """Clients start from the model that they are sent."""
        params: Params = down.params
        return params

    def predict_global(self, net: Net, server: Any, x: Tensor) -> Scores:
        """The server predicts with its model's head."""
        return {"head": net(server.params, x)[1]}
