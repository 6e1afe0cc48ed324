"""Linear attention as a reference needs it: transformers makes the gated delta rule of chunks in f32
whatever the model is in, 3e-4 of a logit off its own result in f64 on a tiny random model. Here it
is written out token by token (arXiv 2412.06464, equation 10) in the dtype of the model, with a decay
of each head or, as Kimi Linear has it, of each channel (arXiv 2510.26692)."""

import sys

import torch


RULES = ("torch_chunk_gated_delta_rule", "chunk_kimi_delta_attention")


def linear_attention_of(layer):
    """What has the rule, or None: Kimi Linear calls it as attention."""
    own = getattr(layer, "self_attn", None)
    return getattr(layer, "linear_attn", own if hasattr(own, "forget_gate") else None)


def takes(model):
    layers = getattr(model.base_model, "layers", [])
    return any(linear_attention_of(layer) is not None for layer in layers)


def gated_delta_rule(query, key, value, g, beta, **_):
    """query, key [B,T,G,C], value [B,T,H,Cv], g [B,T,H] or [B,T,H,C], beta [B,T,H]; returns [B,T,H,Cv] and no state."""
    group = value.shape[2] // key.shape[2]

    def normed(x):
        x = x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
        return x.repeat_interleave(group, 2)

    query, key = normed(query) / key.shape[-1] ** 0.5, normed(key)
    state = value.new_zeros(value.shape[0], value.shape[2], key.shape[3], value.shape[3])
    out = []
    for t in range(value.shape[1]):
        decay = g[:, t].exp()
        state = state * (decay[..., None] if g.dim() == 4 else decay[..., None, None])
        known = torch.einsum("bhcv,bhc->bhv", state, key[:, t])
        change = beta[:, t, :, None] * (value[:, t] - known)
        state = state + key[:, t, :, :, None] * change[:, :, None]
        out.append(torch.einsum("bhcv,bhc->bhv", state, query[:, t]))
    return torch.stack(out, 1), None


def compute_in_double(model, text=None):
    """text: of which its layers are, where the model is more than that."""
    model.set_experts_implementation("eager")  # grouped products have no f64
    model.double()
    model.config.use_cache = False  # the rule here gives no state
    module = sys.modules[type(model).__module__]
    for rule in RULES:
        if hasattr(module, rule):
            setattr(module, rule, gated_delta_rule)
        for layer in (text or model.base_model).layers:
            linear = linear_attention_of(layer)
            if hasattr(linear, rule):
                setattr(linear, rule, gated_delta_rule)
