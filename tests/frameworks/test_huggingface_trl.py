"""Selection in a Trainer that is TRL's."""

import pytest
import torch

pytest.importorskip("transformers")

from hugging_face_models import (
    BASIC,
    Watching,
    epochs_of,
    language_model,
    padded,
    selection,
    sentences,
    trainer,
    vocabulary,
)

from siftback import Epochs, Memory, sequence_losses, token_losses
from siftback.errors import ConfigError
from siftback.frameworks.huggingface import SelectiveTrainerMixin


def test_pairs_of_preferences_are_not_chosen_by_their_rows(tmp_path):
    reward_trainer = pytest.importorskip("trl.trainer.reward_trainer")
    ours = trainer(tmp_path, "classifier", selection=selection("two_pass"))
    ours.data_collator = reward_trainer.DataCollatorForPreference(pad_token_id=0)
    with pytest.raises(ConfigError, match="two rows each: give memory=, and losses= of one for"):
        ours.train()


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_trl_s_trainer(tmp_path):
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")

    class Tuning(Watching, SelectiveTrainerMixin, trl.SFTTrainer):
        pass

    def tuning(given, model=None, **settings):
        data = datasets.Dataset.from_list(
            [{"input_ids": example["input_ids"]} for example in sentences(48, "language model")]
        )
        args = trl.SFTConfig(**{**BASIC, "output_dir": str(tmp_path), "bf16": False, **settings})
        return Tuning(
            model=model or language_model(),
            args=args,
            train_dataset=data,
            processing_class=vocabulary(),
            **given,
        )

    ours = tuning(selection("two_pass"), train_sampling_strategy="sequential")
    ours.train()
    assert [len(batch) for batch in ours.batches] == [4] * 12
    logged = [entry for entry in ours.state.log_history if "mean_token_accuracy" in entry]
    assert len(logged) == 12
    # TRL's loss of the first step is that of the rows that were kept, over as many tokens as the
    # Trainer counts: releases before 5.23 count the first of each row too, which has no loss.
    kept = padded([sentences(48, "language model")[row] for row in ours.batches[0]])
    kept["labels"] = kept["input_ids"].masked_fill(kept["input_ids"] == 0, -100)
    items = ours._get_num_items_in_batch([kept], torch.device("cpu"))
    with torch.no_grad():
        losses, mask = token_losses(language_model(), kept)
    expected = float(losses.sum() / items)
    assert logged[0]["loss"] == pytest.approx(expected, rel=1e-4)
    assert int(items) - int(mask.sum()) in (0, 4)

    rule = Memory(keep=0.5, warmup=Epochs(1))
    remembering = tuning({"memory": rule}, learning_rate=0.0)
    remembering.train()
    first, *passes = epochs_of(remembering, [6, 3, 3])
    assert sorted(first) == list(range(48))
    assert [len(set(rows)) for rows in passes] == [24, 24]
    batch = padded(sentences(48, "language model"))
    batch["labels"] = batch["input_ids"].masked_fill(batch["input_ids"] == 0, -100)
    with torch.no_grad():  # the weights never changed
        torch.testing.assert_close(rule.values[:, 0], sequence_losses(language_model(), batch))

    with pytest.raises(ConfigError, match="a compute_loss of SFTTrainer's own"):
        tuning(selection("single_pass")).train()
