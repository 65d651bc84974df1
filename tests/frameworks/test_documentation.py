"""Each cell of the table of frameworks is backed by tests, which exist."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
TABLE = PAGE.read_text(encoding="utf-8").partition("\n## ")[0]
HEADING, *ROWS = (
    row.split(" | ") for row in re.findall(r"^\| (?!---)(.+) \|$", TABLE, re.MULTILINE)
)
TESTS = {
    name
    for path in Path(__file__).parents[1].rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}

# What each cell rests on, by framework and column.
EVIDENCE = {
    "Lightning": {
        "lines changed": [
            "test_exactly_k_rows_are_trained_on_as_a_loop_by_hand_does",
            "test_the_data_module_that_is_wrapped_does_all_that_it_did",
        ],
        "what resumes": [
            "test_a_training_resumes_after_any_step_bit_for_bit",
            "test_memory_resumes_between_epochs",
        ],
        "several processes": [
            "test_two_processes_share_the_data_and_end_with_equal_weights",
            "test_two_processes_resume_within_an_epoch_bit_for_bit",
            "test_each_process_has_random_numbers_and_a_state_of_its_own",
            "test_fabric_s_processes_share_a_memory_s_data",
        ],
        "what is refused": [
            "test_a_step_whose_losses_are_not_known_is_refused_before_it_trains",
            "test_a_step_whose_losses_cannot_be_recorded_is_refused",
            "test_weights_that_cannot_be_applied_are_refused",
            "test_a_callback_beside_a_selective_loader_is_refused",
            "test_each_row_of_the_table_is_refused_in_its_words",
            "test_what_a_memory_excludes_is_refused_as_fit_starts",
            "test_a_state_of_another_number_of_processes_is_refused",
            "test_fabric_loaders_that_would_be_shared_wrongly_are_refused",
        ],
    },
    "Hugging Face `Trainer`, TRL's `SFTTrainer`": {
        "lines changed": [
            "test_two_passes_are_a_loop_that_scores_and_trains_on_the_kept_rows",
            "test_trl_s_trainer",
        ],
        "what resumes": [
            "test_a_training_resumes_after_any_step_bit_for_bit",
            "test_a_resumed_training_goes_on_with_the_method_of_its_checkpoint",
        ],
        "several processes": [
            "test_two_processes_keep_rows_of_their_own_and_make_one_step",
            "test_a_single_pass_in_two_processes_is_the_mean_of_their_kept_rows",
            "test_a_single_pass_in_two_processes_evaluates_and_saves_the_model_itself",
            "test_two_processes_read_each_example_once_and_know_all_losses",
            "test_two_processes_resumed_within_an_epoch_go_on_bit_for_bit",
        ],
        "what is refused": [
            "test_what_no_method_works_with_is_refused_before_training",
            "test_trl_s_batches_without_rows_are_refused",
            "test_losses_that_a_single_pass_does_not_compute_are_refused",
            "test_orders_and_loaders_that_a_memory_does_not_have_are_refused",
            "test_what_cannot_be_right_is_refused_by_name",
            "test_weights_that_cannot_be_applied_are_refused",
            "test_group_by_length_keeps_its_batches_and_memory_refuses_it",
            "test_a_model_whose_loss_is_not_known_is_refused_before_training",
        ],
    },
    "Accelerate": {
        "lines changed": [
            "test_weights_are_those_of_the_plain_loop",
        ],
        "what resumes": [
            "test_a_training_resumes_after_any_step_bit_for_bit",
            "test_each_of_two_processes_goes_on_from_its_own_state",
        ],
        "several processes": [
            "test_each_example_is_given_to_one_of_two_processes",
            "test_two_processes_step_together_and_keep_the_same_weights",
        ],
        "what is refused": [
            "test_loaders_that_were_wrapped_or_prepared_are_refused",
            "test_each_row_of_the_table_is_refused_in_its_words",
            "test_what_two_processes_would_both_read_is_refused",
            "test_a_state_of_another_number_of_processes_is_refused",
            "test_a_rule_is_prepared_where_the_model_is_sharded",
        ],
    },
    "Keras 3 (torch)": {
        "lines changed": [
            "test_each_step_trains_on_the_rows_that_in_batch_chooses",
            "test_only_what_is_drawn_is_read_and_each_once",
        ],
        "what resumes": [
            "test_a_training_that_is_killed_again_and_again_is_the_same_bit_for_bit",
            "test_a_training_resumes_after_any_step_bit_for_bit",
            "test_a_saved_model_predicts_the_same_and_goes_on_as_if_not_stopped",
            "test_arrays_go_on_between_epochs_bit_for_bit_and_warn_within_one",
        ],
        "several processes": [
            "test_two_processes_share_the_examples_and_keep_one_model",
            "test_two_processes_with_keras_resume_within_an_epoch_bit_for_bit",
            "test_fit_in_several_processes_is_refused",
        ],
        "what is refused": [
            "test_weights_saved_within_an_epoch_are_refused_where_it_does_not_go_on",
            "test_another_backend_is_refused_in_one_sentence",
            "test_several_outputs_are_refused",
            "test_a_loss_that_is_not_one_per_example_is_refused",
            "test_what_would_be_bypassed_is_refused",
            "test_compiled_steps_and_several_steps_in_one_are_refused",
            "test_what_does_not_go_with_a_memory_data_set_is_refused",
        ],
    },
    "plain PyTorch": {
        "lines changed": [
            "test_the_example_runs_and_says_what_it_saved",
        ],
        "what resumes": [
            "test_stopping_anywhere_equals_never_stopping",
        ],
        "several processes": [
            "test_each_has_its_share_of_one_draw_in_equally_many_steps",
            "test_scoring_passes_keep_equally_many_of_other_examples_in_each_process",
        ],
        "what is refused": [
            "test_all_examples_for_each_process_are_refused",
            "test_another_kind_of_object_is_refused_as_it_is_given",
        ],
    },
}


def test_every_framework_has_a_row():
    frameworks = [row[0] for row in ROWS]
    expected = ("Accelerate", "Hugging Face", "Keras", "Lightning", "plain")
    for name in expected:
        assert [name in framework for framework in frameworks].count(True) == 1, name
    assert frameworks == list(EVIDENCE)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_each_cell_rests_on_tests_that_exist(row):
    of_framework = EVIDENCE[row[0]]
    assert list(of_framework) == HEADING[1:]
    assert len(row) == len(HEADING)
    for cell, tests in zip(row[1:], of_framework.values(), strict=True):
        assert cell
        assert tests
        assert not set(tests) - TESTS
