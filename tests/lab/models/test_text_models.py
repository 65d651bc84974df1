"""Models of texts: what padding may not change, and what the single pass gives."""

import pytest
import torch

from siftback import SinglePass
from siftback.errors import ConfigError
from siftback.lab import models
from siftback.lab.data.data_set import IGNORED, PAD, lengths_of
from siftback.lab.forward import example_losses, losses_of_outputs, mean_loss

VOCABULARY, LENGTH = 40, 24
CLASSIFIERS = ("transformer", "ngrams")


def built(name, seed=0, **sizes):
    torch.manual_seed(seed)
    asked = {"width": 16, "classes": VOCABULARY, "vocabulary": VOCABULARY, "length": LENGTH}
    model = models.build(name, **asked | sizes)
    with torch.no_grad():  # new embeddings are so small that nothing would depend on them
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def padded(count=16, classes=3, language=False):
    """Texts of all lengths, of a class each; or windows with a target at each valid position."""
    torch.manual_seed(1)
    tokens = torch.randint(1, VOCABULARY, (count, LENGTH))
    lengths = torch.randint(1, LENGTH + 1, (count, 1))
    lengths[0] = LENGTH
    valid = torch.arange(LENGTH) < lengths
    tokens = tokens.masked_fill(~valid, PAD)
    if not language:
        return tokens, torch.randint(classes, (count,))
    return tokens, torch.randint(1, VOCABULARY, (count, LENGTH)).masked_fill(~valid, IGNORED)


@pytest.mark.parametrize("name", [*CLASSIFIERS, "gpt"])
def test_the_loss_of_a_padded_text_is_that_of_the_text_alone(name):
    language = name == "gpt"
    batch = padded(language=language)
    model = built(name, classes=VOCABULARY if language else 3)
    together = example_losses(model, batch)
    for row, (tokens, label) in enumerate(zip(*batch, strict=True)):
        length = int(lengths_of(tokens))
        labels = label[None, :length] if language else label[None]
        alone = example_losses(model, (tokens[None, :length], labels))
        torch.testing.assert_close(together[row : row + 1], alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(mean_loss(model, batch), together.mean())


@pytest.mark.parametrize("name", [*CLASSIFIERS, "gpt"])
@pytest.mark.sampled(3)
def test_the_single_pass_has_the_gradient_of_the_kept_texts(name):
    language = name == "gpt"
    model = built(name, classes=VOCABULARY if language else 3)
    if name != "ngrams":  # a block is as the others, and tracing takes long
        model.blocks = model.blocks[:1]
    sift = SinglePass(model, losses=example_losses, keep=1 / 2, check=False)
    tokens, labels = padded(language=language)
    for length in (17,) if language else (LENGTH, 17):  # another one, as batches have
        short = (tokens[:, :length], labels[:, :length] if language else labels)
        model.zero_grad()
        sift(*short).backward()
        fast = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        kept = sift.selection.positions
        assert len(kept) == 8
        example_losses(model, short)[kept].mean().backward()
        for found, parameter in zip(fast, model.parameters(), strict=True):
            torch.testing.assert_close(found, parameter.grad, rtol=0, atol=1e-5)


def test_gpt_sees_nothing_that_is_to_come():
    model = built("gpt")
    tokens, _ = padded(language=True)
    before = model(tokens)
    tokens[:, 10] = tokens[:, 10] % (VOCABULARY - 1) + 1
    after = model(tokens)
    assert torch.equal(before[:, :10], after[:, :10])
    assert not torch.equal(before[0, 10:], after[0, 10:])


def test_ngrams_sees_the_order_of_pairs_alone():
    model = built("ngrams", classes=3)
    texts = torch.tensor([[5, 6, 7, 5, 6], [5, 6, 5, 6, 7]])
    assert not torch.allclose(*model(texts))
    # 5 6 | 6 7 | 7 5 | 5 6, from either end of a circle but for the first word.
    texts = torch.tensor([[5, 6, 7, 5, 6, 7, 8, 5], [5, 6, 7, 8, 5, 6, 7, 5]])
    torch.testing.assert_close(*model(texts))


def test_losses_are_the_means_over_valid_tokens():
    logits = torch.randn(3, 4, 5)
    labels = torch.tensor([[1, 2, 3, 4], [0, 1, IGNORED, IGNORED], [4, IGNORED, 1, 2]])
    for smoothing in (0.0, 0.1):
        found = losses_of_outputs(logits, labels, smoothing)
        for row, label in enumerate(labels):
            valid = label != IGNORED
            logs = logits[row][valid].log_softmax(1)
            own = -logs[torch.arange(len(logs)), label[valid]]
            each = (1 - smoothing) * own - smoothing * logs.mean(1)
            torch.testing.assert_close(found[row], each.mean())


def test_models_are_refused_where_examples_are_others():
    for name, kind, data, others in (
        ("cnn", "texts", "imdb", "transformer, ngrams"),
        ("gpt", "images", "digits", "cnn, fastcnn, mlp"),
        ("transformer", "language", "tinyshakespeare", "gpt"),
    ):
        with pytest.raises(ConfigError, match=f"model '{name}' takes .*{data}.*{others}"):
            models.check_kind(name, kind, data)
    assert models.find_architecture("gpt").optimizer == "adamw"
    resnet = models.find_architecture("resnet18")
    assert (resnet.optimizer, resnet.lr, resnet.weight_decay) == ("sgd", 0.1, 5e-4)
    assert resnet.batch_size == 128
