"""What is taken for a question, in many languages and spellings; what must not be."""

from __future__ import annotations

import pytest

from livingkv.question import asks_about_all, names_in
from livingkv.question_signs import is_question

ASKED = (
    "What is my dog called?",
    "My dog is ill. Which vet did I like?",
    "What was the code? I forgot it.",
    "what's my dogs name",
    "where do i live",
    "which car do i drive",
    "what colour is my car",
    "how many bees does she keep",
    "hey, when did we meet",
    "did i tell you about the boat",
    "Is there any milk left?!",
    "Tell me what I said about the roof.",
    "Remind me of the name of the vet.",
    "please remind me what the code is",
    "Can you remind me where my keys are",
    "Wie heißt mein Hund?",
    "¿Dónde vivo?",
    "Quel âge a-t-il ?",
    "Πού μένω;",  # the Greek question mark
    "أين أسكن؟",
    "私の犬の名前は何ですか",
    "我的狗叫什么名字？他很大。",
    "你记得吗",
    "제 개 이름이 뭐였나요",
    'Who said "no"?',
    "Do you know (by chance?) Ada?",
)
NOT_ASKED = (
    "My dog is called Rex.",
    "What a lovely day! My dog is called Rex.",
    "When I was young I lived in Graz.",
    "when i was young i lived in graz",
    "what i like is tea",
    "what you said is true",
    "How nice of you to ask.",
    "I know what the code is.",
    "Remind me to buy milk.",
    'She asked "are you well?" and left.',
    "The address is https://example.org/?q=7 and it works.",
    "`a ? b : c` is what I wrote.",
    "Wie gesagt, mein Hund heißt Rex.",
    "我的狗叫小白。",
    "私の犬はレックスです。",
    "Thanks.",
    "Can do.",
    "Will is my brother.",
    "My friend May has a dog; it is called Rex.",
)


@pytest.mark.parametrize("message", ASKED)
def test_it_asks(message: str) -> None:
    assert is_question(message)


@pytest.mark.parametrize("message", NOT_ASKED)
def test_it_does_not_ask(message: str) -> None:
    assert not is_question(message)


@pytest.mark.timeout(5)
@pytest.mark.parametrize(
    "message",
    ["apples, pears, and " * 20_000 + "costs 3.5 euro", " " * 400_000 + "a.b", "Aa " * 100_000, "count " * 50_000],
)
def test_long_messages_take_no_time(message: str) -> None:
    assert not is_question(message)
    assert len(names_in(message)) < 4000 and asks_about_all(message) in (True, False)


def test_a_question_at_the_end_of_a_long_message_is_seen() -> None:
    assert is_question("apples, pears, and " * 2_000 + "so what is the code of the door?")
