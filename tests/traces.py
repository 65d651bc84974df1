"""Traces that a selection pass could leave behind in a model."""

import torch


def traces(model):
    """All that a pass could leave behind, copied."""
    return (
        [module.training for module in model.modules()],
        {name: value.clone() for name, value in model.state_dict().items()},
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [(id(p), p.requires_grad) for p in model.parameters()],
        torch.get_rng_state(),
    )


def assert_untouched(model, before):
    modes, state, gradients, parameters, rng = traces(model)
    assert modes == before[0]
    assert parameters == before[3]
    torch.testing.assert_close((state, gradients, rng), (*before[1:3], before[4]), rtol=0, atol=0)


def failing(model, batch):
    model(batch[0])
    raise RuntimeError("the user's losses fail")
