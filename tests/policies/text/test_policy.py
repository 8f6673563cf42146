"""The text that rewards read is what the model wrote."""

from tests.support.text_policies import make


def test_blanks_before_commas_and_question_marks_stay(tiny):
    policy = make(tiny("qwen3_vl"))
    # some models' tokenizers say so
    policy.tokenizer.clean_up_tokenization_spaces = True
    policy.tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    text = "is it a cat , or do n't you know ?"
    assert policy.decode([policy.tokenizer(text)["input_ids"]]) == [text]
