"""The user's own PyTorch modules as nets, without subclassing.

A net can be specified as
- an `nn.Sequential`: its head begins at the last layer that has parameters;
- (module, "name"): the layer of that name is the head, and everything before it is the body;
- (body, head): two modules;
- a module that returns (embedding, logits);
- a function that returns one of these: every client then starts from its own weights, drawn from the seed.

A module starts from the weights that it already has.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from protofed.draws import DerivedDropout, no_global_draws
from protofed.errors import UserError
from protofed.examples import Examples
from protofed.net import Net, Params, body_then_head

Kind = Literal["sequence", "named", "pair", "joint"]


@dataclass(frozen=True)
class OwnNet:
    """A net as the user specifies it."""

    spec: Any  # one of the forms above
    kind: Kind
    head_layer: str  # the layer that is the head or begins it; "" for (body, head) and for joint nets

    @classmethod
    def net(
        cls, spec: Any, label: str, shape: tuple[int, ...], classes: int, client_classes: tuple[int, ...] = ()
    ) -> Net:
        """The net for inputs of a shape. It is tried out first: a net that does not fit the inputs or the classes is
        an error.

        `label` is the position of the net in the user's call, such as "nets[0]". It begins the net's name.
        `client_classes`: the classes of its client, in order. The net has an output for each class, or for each of
        these.
        """
        is_function = _is_function(spec)
        try:
            with torch.random.fork_rng(devices=[]):  # this instance is only inspected
                instance = _new_instance(spec)
            own = cls(spec if is_function else instance, *_kind_and_head(instance, label))
            module = instance[0] if isinstance(instance, tuple) else instance
            net_type = JointNet if own.kind == "joint" else Net
            net = net_type(
                f"{label} ({type(module).__name__})",
                own.split,
                shape,
                classes,
                own.combine,
                fixed_init=not is_function,
                source=repr(instance),
            )
            original = body_then_head(*instance) if own.kind == "pair" else module
            _try_out(net, None if is_function else original, shape, client_classes)
        except UserError:
            raise
        except Exception as problem:  # a user's module may raise anything
            raise UserError(f"{label} cannot be used with inputs of shape {shape}: {problem}") from problem
        return net

    def split(self) -> tuple[nn.Module, nn.Module]:
        """A new body and head."""
        instance = _new_instance(self.spec)
        if self.kind == "pair":
            return instance[0], instance[1]
        if self.kind == "joint":
            return instance, nn.Identity()
        module = instance[0] if isinstance(instance, tuple) else instance
        if self.kind == "named":
            head = _replace_layer(module, self.head_layer, nn.Identity())
            return module, head
        layers = _layers_of(module)
        first_of_head = [name for name, _ in layers].index(self.head_layer)
        return nn.Sequential(OrderedDict(layers[:first_of_head])), nn.Sequential(OrderedDict(layers[first_of_head:]))

    def combine(self, body: nn.Module, head: nn.Module) -> nn.Module:
        """One module from a body and a head, in the form of `spec`."""
        if self.kind == "pair":
            return body_then_head(body, head)
        if self.kind == "named":
            _replace_layer(body, self.head_layer, head)
        if self.kind == "sequence":
            return nn.Sequential(OrderedDict([*_layers_of(body), *_layers_of(head)]))
        return body


def require_nets(nets: Any, clients: int) -> None:
    """Raise an error unless these are nets for so many clients: one for all, or one per client."""
    if isinstance(nets, nn.Module | tuple) or callable(nets):
        raise UserError(f"nets: got a {type(nets).__name__}; must be a list of nets, as nets=[net].")
    if len(nets) not in (1, clients):
        raise UserError(f"nets: got {len(nets)} for {clients} clients. Give one for all, or one per client.")


def own_nets(nets: Sequence[Any], train: Sequence[Examples], classes: int) -> tuple[Net, ...]:
    """The net of each client, of nets that were given in Python.

    Clients with the same net and inputs of the same shape share the object. If the net has outputs for the client's
    classes only, these must be the same, too.
    """
    require_nets(nets, len(train))
    built: dict[Any, Net] = {}
    modules = [nets[0]] * len(train) if len(nets) == 1 else list(nets)
    by_client = []
    for client, (module, examples) in enumerate(zip(modules, train, strict=True)):
        if isinstance(module, Net):  # of an earlier call
            by_client.append(module)
            continue
        own_classes = tuple(examples.class_counts(classes).nonzero().flatten().tolist())
        key = (id(module), examples.shape)
        net = built.get((*key, ())) or built.get((*key, own_classes))
        if net is None:
            name = f"nets[{client if len(nets) > 1 else 0}]"
            net = OwnNet.net(module, name, examples.shape, classes, own_classes)
            built[*key, net.outputs] = net
        by_client.append(net)
    return tuple(by_client)


class JointNet(Net):
    """A module that returns (embedding, logits). Its head cannot be called separately."""

    def embed(self, params: Params, x: Tensor) -> Tensor:
        return self(params, x)[0]

    def head(self, params: Params, z: Tensor) -> Tensor:
        raise UserError(
            f"{self.name} returns its embedding and logits together, but this method calls the head separately. "
            "Specify it as (body, head) or (module, name of its last layer)."
        )

    def outputs_of_parts(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        out: Any = self.call("body", params, x)
        if not (isinstance(out, tuple) and len(out) == 2):
            layers = ", ".join(name for name, _ in self.module["body"].named_children())
            raise UserError(
                f"{self.name} returns a {type(out).__name__}; it must return (embedding, logits). Change it, or "
                f"specify (module, name of its last layer){f'; its layers are {layers}' if layers else ''}."
            )
        return out[0], out[1]


def _is_function(spec: Any) -> bool:
    """Whether a net is specified by a function that returns it."""
    return callable(spec) and not isinstance(spec, nn.Module)


def _new_instance(spec: Any) -> Any:
    """A new copy of the specified net; a function is called for it."""
    return deepcopy(spec() if _is_function(spec) else spec)


def _kind_and_head(instance: Any, label: str) -> tuple[Kind, str]:
    """In which form a net is specified, and the name of the layer at which its head begins."""
    if isinstance(instance, tuple) and len(instance) == 2 and isinstance(instance[0], nn.Module):
        module, head = instance
        if isinstance(head, nn.Module):
            return "pair", ""
        if isinstance(head, str):
            names = [name for name, _ in module.named_modules(remove_duplicate=False) if name]
            if head not in names:
                raise UserError(f"{label} has no layer {head!r}. It has: {', '.join(names)}.")
            return ("sequence" if _is_plain_sequence(module) and "." not in head else "named"), head
    if not isinstance(instance, nn.Module):
        raise UserError(
            f"{label} is a {type(instance).__name__}; a net is a module, (module, name of its last layer), "
            "(body, head), or a function that returns one of these."
        )
    if not _is_plain_sequence(instance):
        return "joint", ""
    with_params = [name for name, layer in _layers_of(instance) if any(True for _ in layer.parameters())]
    if not with_params:
        raise UserError(f"{label} has no parameters: it cannot learn.")
    if len(with_params) == 1:
        raise UserError(
            f"{label} has only one layer with parameters, so that the embedding would be the raw input and prototypes "
            "would be means of raw inputs. Add a layer before it, or specify (nn.Identity(), layer) if the inputs are "
            "features."
        )
    return "sequence", with_params[-1]


def _layers_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """All layers of a module by name. `named_children` would skip a layer that is used a second time."""
    return [(name, layer) for name, layer in module._modules.items() if layer is not None]


def _is_plain_sequence(module: nn.Module) -> bool:
    """Whether a module is an `nn.Sequential` that calls its layers in order."""
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward


def _replace_layer(module: nn.Module, name: str, layer: nn.Module) -> nn.Module:
    """Replace the layer of that name and return the old one."""
    parent, _, leaf = name.rpartition(".")
    old_layer = module.get_submodule(name)
    setattr(module.get_submodule(parent), leaf, layer)
    return old_layer


def _try_out(net: Net, original: nn.Module | None, shape: tuple[int, ...], client_classes: tuple[int, ...]) -> None:
    """Run the net once. It is an error if its outputs have the wrong shapes, if they differ from those of the
    `original` module, or if it changes a buffer that its state dict does not hold. Sets `net.outputs` and
    `net.trains_alone`."""
    params, x = net.init(torch.Generator()), torch.linspace(-1, 1, 2 * torch.Size(shape).numel()).reshape(2, *shape)
    nonempty = [value for value in params.values() if value.numel()]
    if len({value.data_ptr() for value in nonempty}) < len(nonempty):
        raise UserError(f"{net.name} has one tensor under two names. Give each layer its own tensor.")
    with torch.no_grad(), no_global_draws(net.name):
        z, logits = net(params, x)
        count = len(client_classes)
        if 0 < count < net.classes and logits.shape == (2, count):
            net.outputs = client_classes
            logits = net.by_class(logits)
        if net.grid:
            is_right = logits.shape == (2 * shape[1] * shape[2], net.classes)
        else:
            is_right = z.dim() == 2 and logits.shape == (2, net.classes)
        if not is_right:
            or_own = f", or [2, {count}], because its client has {count} of them" if 0 < count < net.classes else ""
            raise UserError(
                f"{net.name} returns embeddings {list(z.shape)} and logits {list(logits.shape)} for 2 inputs; they "
                f"must be [2, dim] and [2, {net.classes}], because there are {net.classes} classes{or_own}. "
                "Change the net, or set the classes of the federation."
            )
        for module in filter(None, (net.loaded(params), original and original.eval())):
            out = module(x)
            outputs = net.logit_rows(out[1] if isinstance(out, tuple) else out)
            if not torch.allclose(logits, net.by_class(outputs), atol=1e-5):
                raise UserError(
                    f"{net.name} computes more after the layer that was named as its last. Name the layer that comes "
                    "last, or let it return (embedding, logits)."
                )
    unsaved_buffers = {name: value.clone() for name, value in net.module.named_buffers() if name not in net.shapes}
    trained = {name: value.clone() for name, value in params.items()}
    net.train(True)
    try:
        with torch.no_grad(), DerivedDropout(torch.tensor(0)):
            net(trained, x)
    finally:
        net.train(False)
    buffers = {name: value for name, value in params.items() if name not in net.trainable}
    changes_buffers = any(not torch.equal(trained[name], value) for name, value in buffers.items())
    net.trains_alone = (
        net.trains_alone or changes_buffers or _mixes_examples(net, params, x) or not _can_be_mapped(net, params, x)
    )
    buffers_now = dict(net.module.named_buffers())
    if any(not torch.equal(buffers_now[name], value) for name, value in unsaved_buffers.items()):
        raise UserError(f"{net.name} changes a buffer that is not in its state dict: register it as persistent.")


def _can_be_mapped(net: Net, params: Params, x: Tensor) -> bool:
    """Whether `vmap` can map the net over clients. It cannot if the net branches on the values of a tensor.

    It is tried with gradients inside and outside of `vmap`, which can map recurrent layers only with the first.
    """
    stacked = {name: torch.stack([value, value]) for name, value in params.items() if name in net.trainable}
    fixed = {name: value for name, value in params.items() if name not in stacked}

    def total(trainable: Params, x: Tensor) -> Tensor:
        return net({**fixed, **trainable}, x)[1].sum()

    try:
        for mapped in (vmap(grad(total)), vmap(total)):
            mapped(stacked, torch.stack([x, 2 * x]))
    except Exception:  # torch raises many types of errors here
        return False
    return True


def _mixes_examples(net: Net, params: Params, x: Tensor) -> bool:
    """Whether, in training, the output for an example depends on the other examples of its batch."""
    net.train(True)
    try:
        logits = []
        for batch in (x, torch.cat([x, 3 + x])):
            with torch.no_grad(), DerivedDropout(torch.tensor(0)):
                outputs = net({name: value.clone() for name, value in params.items()}, batch)[1]
                logits.append(outputs.unflatten(0, (len(batch), -1))[: len(x)])
    finally:
        net.train(False)
    return not torch.allclose(logits[0], logits[1], atol=1e-5)
