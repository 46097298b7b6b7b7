"""Cut a network into named steps, in the order the data takes: stem, blocks, pooling.

Composing the steps gives the pooled features h(x); the classification head on top is ours. Known
families (transformers, timm, open_clip, nn.Sequential) are cut at every block; any other module is cut
once, at a boundary the caller names, by tracing it with torch.fx.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from efface.errors import BackboneError
from efface.network import blocks


@dataclass(frozen=True)
class Step:
    """One step of the network. ``stage`` counts the resolution stages; −1 is not a block."""

    name: str
    module: nn.Module
    stage: int = -1

    @property
    def is_block(self) -> bool:
        return self.stage >= 0


def cut(module: nn.Module, boundary: str | None = None) -> list[Step]:
    """The steps of ``module`` without its classification head."""
    package = type(module).__module__.partition(".")[0]
    family = _FAMILIES.get(package, {}).get(type(module).__name__)
    if family is not None:
        return family(module)
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        return _sequential(module)
    if boundary is not None:
        return _trace(module, boundary)
    raise BackboneError(
        f"do not know how to cut a {type(module).__name__} into blocks.",
        f"name the boundary (the first module to linearise), or pass an nn.Sequential. "
        f"Cut by themselves: {', '.join(f'{p}.{n}' for p in _FAMILIES for n in _FAMILIES[p])}.",
    )


def _sequential(module: nn.Sequential) -> list[Step]:
    # _modules, because named_children() skips the second use of a module (one ReLU for all).
    children = [(name, child) for name, child in module._modules.items() if child is not None]
    if children and isinstance(children[-1][1], nn.Linear):
        children = children[:-1]
    steps = []
    for position, (name, child) in enumerate(children):
        has_weights = any(True for _ in child.parameters())
        steps.append(Step(name, child, position if has_weights else -1))
    return steps


# --- transformers ---------------------------------------------------------------------------------


def _conv_layer(layer: nn.Module) -> list[nn.Module]:
    """HF's ResNetConvLayer / ResNetShortCut as plain modules."""
    modules = [layer.convolution, layer.normalization]
    activation = getattr(layer, "activation", None)
    if activation is not None and not isinstance(activation, nn.Identity):
        modules.append(_plain_activation(activation))
    return modules  # type: ignore[return-value]


def _plain_activation(activation: nn.Module) -> nn.Module:
    return nn.ReLU() if type(activation).__name__ == "ReLU" else activation


def _resnet_block(layer: nn.Module) -> blocks.Residual:
    body = nn.Sequential(*[m for part in layer.layer for m in _conv_layer(part)])  # type: ignore[union-attr]
    shortcut = layer.shortcut
    if not isinstance(shortcut, nn.Identity):
        shortcut = nn.Sequential(*_conv_layer(shortcut))  # type: ignore[arg-type]
    return blocks.Residual(body, shortcut, _plain_activation(layer.activation))  # type: ignore[arg-type]


def _hf_resnet(model: nn.Module) -> list[Step]:
    net = model.resnet
    stem = nn.Sequential(*_conv_layer(net.embedder.embedder), net.embedder.pooler)  # type: ignore
    steps = [Step("resnet.embedder", stem)]
    for s, stage in enumerate(net.encoder.stages):  # type: ignore
        for b, layer in enumerate(stage.layers):
            name = f"resnet.encoder.stages.{s}.layers.{b}"
            steps.append(Step(name, _resnet_block(layer), s))
    return [*steps, Step("pool", blocks.GlobalMean())]


def _hf_convnext(model: nn.Module) -> list[Step]:
    net = getattr(model, "convnext", None) or model.convnextv2
    steps = [Step("embeddings", net.embeddings)]  # type: ignore
    for s, stage in enumerate(net.encoder.stages):  # type: ignore
        down = list(stage.downsampling_layer)
        if down:
            steps.append(Step(f"encoder.stages.{s}.downsampling_layer", nn.Sequential(*down), s))
        for b, layer in enumerate(stage.layers):
            steps.append(Step(f"encoder.stages.{s}.layers.{b}", layer, s))
    return [*steps, Step("pool", blocks.GlobalMean()), Step("layernorm", net.layernorm)]  # type: ignore


def _hf_vit(model: nn.Module) -> list[Step]:
    net = getattr(model, "vit", None) or model.deit
    layers = net.layers if hasattr(net, "layers") else net.encoder.layer  # type: ignore
    steps = [Step("embeddings", net.embeddings)]  # type: ignore
    steps += [Step(f"layers.{b}", blocks.FirstOutput(m), 0) for b, m in enumerate(layers)]  # type: ignore
    return [*steps, Step("layernorm", net.layernorm), Step("pool", blocks.FirstToken())]  # type: ignore


def _hf_dinov2(model: nn.Module) -> list[Step]:
    net = model.dinov2
    steps = [Step("embeddings", net.embeddings)]  # type: ignore
    for b, layer in enumerate(net.encoder.layer):  # type: ignore
        steps.append(Step(f"encoder.layer.{b}", blocks.FirstOutput(layer), 0))
    return [*steps, Step("layernorm", net.layernorm), Step("pool", blocks.ClassAndMeanToken())]  # type: ignore


def _hf_swin(model: nn.Module) -> list[Step]:
    net = model.swin
    steps = [Step("embeddings", blocks.FirstOutput(net.embeddings))]  # type: ignore
    dims = _swin_grid(model.config)
    for s, stage in enumerate(net.encoder.layers):  # type: ignore
        for b, layer in enumerate(stage.blocks):
            block = blocks.FirstOutput(layer, dims)
            steps.append(Step(f"encoder.layers.{s}.blocks.{b}", block, s))
        if stage.downsample is not None:
            down = blocks.FirstOutput(stage.downsample, dims)
            steps.append(Step(f"encoder.layers.{s}.downsample", down, s + 1))
            dims = ((dims[0] + 1) // 2, (dims[1] + 1) // 2)  # odd grids are padded
    return [*steps, Step("layernorm", net.layernorm), Step("pool", blocks.MeanToken())]  # type: ignore


def _swin_grid(config: Any) -> tuple[int, int]:
    """Patches along each side; the embedding pads images that the patch size does not divide."""
    sides, patches = (
        value if isinstance(value, list | tuple) else (value, value)
        for value in (config.image_size, config.patch_size)
    )
    return -(-sides[0] // patches[0]), -(-sides[1] // patches[1])


def _hf_efficientnet(model: nn.Module) -> list[Step]:
    net = model.efficientnet
    steps, stage = [Step("embeddings", net.embeddings)], 0  # type: ignore
    for b, block in enumerate(net.encoder.blocks):  # type: ignore
        stage += block.depthwise_conv.stride == 2
        steps.append(Step(f"encoder.blocks.{b}", block, stage))
    top = nn.Sequential(net.encoder.top_conv, net.encoder.top_bn, net.encoder.top_activation)  # type: ignore
    return [*steps, Step("encoder.top", top, stage + 1), Step("pool", blocks.GlobalMean())]


def _hf_clip(model: nn.Module) -> list[Step]:
    steps = [Step("embeddings", nn.Sequential(model.embeddings, model.pre_layrnorm))]  # type: ignore
    steps += _tower_layers(model)
    return [*steps, Step("pool", blocks.FirstToken()), Step("layernorm", model.post_layernorm)]  # type: ignore


def _hf_siglip(model: nn.Module) -> list[Step]:
    """Pooled by the mean of its tokens, as transformers' classifier does, not by its attention head."""
    steps = [Step("embeddings", model.embeddings), *_tower_layers(model)]  # type: ignore
    return [*steps, Step("layernorm", model.post_layernorm), Step("pool", blocks.MeanToken())]  # type: ignore


def _tower_layers(model: nn.Module) -> list[Step]:
    layers: Any = model.encoder.layers  # type: ignore[union-attr]
    made = (blocks.FirstOutput(layer, None) for layer in layers)  # None: no mask
    return [Step(f"encoder.layers.{b}", block, 0) for b, block in enumerate(made)]


# --- timm -----------------------------------------------------------------------------------------


def _timm_resnet(model: nn.Module) -> list[Step]:
    m = model
    stem = nn.Sequential(m.conv1, m.bn1, m.act1, m.maxpool)  # type: ignore[arg-type]
    steps = [Step("stem", stem)]
    for s in range(1, 5):
        for b, block in enumerate(getattr(m, f"layer{s}")):
            steps.append(Step(f"layer{s}.{b}", _timm_block(block), s))
    return [*steps, Step("pool", blocks.GlobalMean())]


def _timm_block(block: nn.Module) -> nn.Module:
    """timm's plain BasicBlock and Bottleneck as a Residual; variants (SE, blur) stay whole."""
    extras = [getattr(block, name, None) for name in ("se", "drop_path", "drop_block", "aa")]
    if any(extra is not None and not isinstance(extra, nn.Identity) for extra in extras):
        return block
    body: list[nn.Module] = []
    activation: nn.Module = nn.Identity()
    for i in (1, 2, 3):
        if not hasattr(block, f"conv{i}"):
            break
        body += [activation] if body else []
        body += [getattr(block, f"conv{i}"), getattr(block, f"bn{i}")]
        activation = _plain_activation(getattr(block, f"act{i}"))
    shortcut = block.downsample if block.downsample is not None else nn.Identity()
    return blocks.Residual(nn.Sequential(*body), shortcut, activation)  # type: ignore[arg-type]


class _TimmEmbed(nn.Module):
    """timm's VisionTransformer up to its first block. It keeps the emptied network because
    ``_pos_embed`` is a method of it, and must see the weights that are saved and loaded."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.vit = copy.copy(model)
        kept = ("patch_embed", "pos_drop", "norm_pre")
        self.vit._modules = {k: m if k in kept else None for k, m in model._modules.items()}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.vit._pos_embed(self.vit.patch_embed(x))  # type: ignore[operator]
        return self.vit.norm_pre(x)  # type: ignore[operator]


def _timm_vit(model: nn.Module) -> list[Step]:
    """Pooled as it is; where it pools by attention (SigLIP), by the mean of its tokens, as ``hf:`` has it."""
    kind = getattr(model, "global_pool", "token")
    if kind not in ("token", "avg", "map"):
        raise BackboneError(
            f"this VisionTransformer pools by {kind!r}, not by its class token or a mean.",
            "choose a timm model that does, or its transformers version.",
        )
    steps = [Step("embed", _TimmEmbed(model))]
    steps += [Step(f"blocks.{b}", m, 0) for b, m in enumerate(model.blocks)]  # type: ignore
    skip: Any = getattr(model, "num_prefix_tokens", 1)
    pool = blocks.FirstToken() if kind == "token" else blocks.MeanToken(skip)
    steps += [Step("norm", model.norm), Step("pool", pool)]  # type: ignore
    last = getattr(model, "fc_norm", None)
    return (
        steps if last is None or isinstance(last, nn.Identity) else [*steps, Step("fc_norm", last)]
    )


def _timm_efficientnet(model: nn.Module) -> list[Step]:
    m = model
    steps = [Step("stem", nn.Sequential(m.conv_stem, m.bn1))]  # type: ignore[arg-type]
    for s, stage in enumerate(m.blocks):  # type: ignore
        steps += [Step(f"blocks.{s}.{b}", block, s) for b, block in enumerate(stage)]
    head = nn.Sequential(m.conv_head, m.bn2)  # type: ignore[arg-type]
    return [*steps, Step("conv_head", head, len(m.blocks)), Step("pool", blocks.GlobalMean())]  # type: ignore


def _timm_convnext(model: nn.Module) -> list[Step]:
    m = model
    steps = [Step("stem", m.stem)]  # type: ignore[arg-type]
    for s, stage in enumerate(m.stages):  # type: ignore
        if not isinstance(stage.downsample, nn.Identity):
            steps.append(Step(f"stages.{s}.downsample", stage.downsample, s))
        steps += [Step(f"stages.{s}.blocks.{b}", block, s) for b, block in enumerate(stage.blocks)]
    head = m.head
    parts = [m.norm_pre, head.global_pool, head.norm, head.flatten, head.pre_logits]  # type: ignore
    return [*steps, Step("pool", nn.Sequential(*parts))]  # type: ignore[arg-type]


# --- open_clip: image towers ----------------------------------------------------------------------


class _ClipEmbed(nn.Module):
    """Patches, the class token before them, places added, and the norm before the first block."""

    def __init__(self, tower: nn.Module) -> None:
        super().__init__()
        self.patches, self.norm = tower.conv1, tower.ln_pre
        self.token, self.places = tower.class_embedding, tower.positional_embedding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)  # type: ignore[operator]
        first = self.token.expand(len(x), 1, -1)  # type: ignore[operator]
        return self.norm(torch.cat([first, x], dim=1) + self.places)  # type: ignore[operator]


def _clip_vit(model: nn.Module) -> list[Step]:
    """Without the projection to where words and pictures are compared, as ``hf:`` has it."""
    kind, layers = getattr(model, "pool_type", None), list(model.transformer.resblocks)  # type: ignore
    plain = all(type(b).__name__ == "ResidualAttentionBlock" for b in layers)
    if kind not in ("tok", "avg") or model.attn_pool is not None or not plain:
        raise BackboneError(
            "this tower of open_clip has attention of its own kind, or pools by it.",
            "choose a plain ViT (ViT-B-32, ViT-L-14), a tower from timm, or its transformers version.",
        )
    steps = [Step("embed", _ClipEmbed(model))]
    for b, block in enumerate(layers):
        first = (block.ln_1, blocks.SelfAttention(block.attn), block.ls_1)
        second = (block.ln_2, block.mlp, block.ls_2)
        steps.append(Step(f"resblocks.{b}", blocks.PreNormBlock(first, second), 0))
    pool = Step("pool", blocks.FirstToken() if kind == "tok" else blocks.MeanToken(1))
    norm = Step("ln_post", model.ln_post)
    return [*steps, pool, norm] if model.final_ln_after_pool else [*steps, norm, pool]


def _clip_timm(model: nn.Module) -> list[Step]:
    """A tower that is timm's network, without open_clip's projection."""
    return cut(model.trunk)  # type: ignore[arg-type]


# Package -> class name -> how to cut it. By package, because everybody has a class named ResNet.
_FAMILIES: dict[str, dict[str, Callable[[nn.Module], list[Step]]]] = {
    "transformers": {
        "ResNetForImageClassification": _hf_resnet,
        "ConvNextForImageClassification": _hf_convnext,
        "ConvNextV2ForImageClassification": _hf_convnext,
        "ViTForImageClassification": _hf_vit,
        "DeiTForImageClassification": _hf_vit,
        "Dinov2ForImageClassification": _hf_dinov2,
        "SwinForImageClassification": _hf_swin,
        "EfficientNetForImageClassification": _hf_efficientnet,
        "CLIPVisionModel": _hf_clip,
        "SiglipVisionModel": _hf_siglip,
    },
    "timm": {
        "ResNet": _timm_resnet,
        "VisionTransformer": _timm_vit,
        "EfficientNet": _timm_efficientnet,
        "ConvNeXt": _timm_convnext,
    },
    "open_clip": {"VisionTransformer": _clip_vit, "TimmModel": _clip_timm},
}


# --- anything else: one cut by tracing ------------------------------------------------------------


def _trace(module: nn.Module, boundary: str) -> list[Step]:
    """Trace with torch.fx; everything before ``boundary`` is one step, the rest another."""
    try:
        graph_module = fx.symbolic_trace(module.eval())
    except Exception as error:
        raise BackboneError(
            f"torch.fx cannot trace {type(module).__name__}: {error}",
            "pass an nn.Sequential whose children are the steps, ending in a Linear head.",
        ) from error
    nodes = list(graph_module.graph.nodes)
    start = next((n for n in nodes if n.op == "call_module" and _is_in(n, boundary)), None)
    if start is None:
        names = [str(n.target) for n in nodes if n.op == "call_module"]
        raise BackboneError(
            f"the network calls no module named {boundary!r}.", f"choose one of {names}."
        )
    head = _final_linear(graph_module, nodes)
    split = nodes.index(start)
    prefix = _subgraph(graph_module, nodes[:split], None, start.args[0])
    tail = _subgraph(graph_module, nodes[split : nodes.index(head)], start.args[0], head.args[0])
    return [Step("prefix", prefix), Step(boundary, tail, 0)]


def _is_in(node: fx.Node, name: str) -> bool:
    """Whether the node calls the module of that name, or one inside it (fx traces into blocks)."""
    return node.target == name or str(node.target).startswith(name + ".")


def _final_linear(graph_module: fx.GraphModule, nodes: list[fx.Node]) -> fx.Node:
    last = nodes[-1].args[0]
    if isinstance(last, fx.Node) and last.op == "call_module":
        target = graph_module.get_submodule(str(last.target))
        if isinstance(target, nn.Linear):
            return last
    raise BackboneError(
        "the network does not end in an nn.Linear head.",
        "return the output of one nn.Linear (softmax and losses come later).",
    )


def _subgraph(
    root: fx.GraphModule, nodes: list[fx.Node], entry: object, output: object
) -> fx.GraphModule:
    """A module computing ``output`` from ``entry`` (None: from the network's own input)."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    if entry is not None:
        known[entry] = graph.placeholder("x")  # type: ignore[index]

    def lookup(node: fx.Node) -> fx.Node:
        if node in known:
            return known[node]
        raise BackboneError(
            f"the boundary does not cut the network in two: {node.name!r} is used on both sides.",
            "choose a boundary that every path goes through.",
        )

    for node in nodes:
        if node.op == "get_attr" or node not in known:
            known[node] = graph.node_copy(node, lookup)
    graph.output(known[output])  # type: ignore[index]
    return fx.GraphModule(root, graph)
