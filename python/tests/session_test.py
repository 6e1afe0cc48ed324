"""Sessions: a text that is gone on with against the same text read whole, and several of one model
at the same time."""

from __future__ import annotations

import copy
import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny import TINY

import moe_cpp as moe


def test_prefill_in_pieces_is_the_models_logits(shared: moe.Model) -> None:
    ids = shared.encode("the small router learns")
    whole = shared.logits(ids)
    with shared.session() as session:
        assert len(session) == 0
        session.prefill(ids[:5])
        assert session.prefill(ids[5:8], rows=0).shape == (0, whole.shape[1])
        np.testing.assert_allclose(
            session.prefill(ids[8:], rows=3), whole[-3:], rtol=1e-4, atol=1e-5
        )  # in bits with AVX-512
        assert len(session) == ids.size


def test_a_session_goes_on_with_what_it_wrote(shared: moe.Model) -> None:
    with shared.session(capacity=500) as session:
        first = session.generate("the small ", tokens=20, seed=3)
        assert first == shared.generate("the small ", tokens=20, seed=3)
        held = len(session)
        assert held == first.prompt_tokens + 20
        pieces: list[str] = []
        second = session.generate(" router", tokens=10, seed=4, on_text=pieces.append)
        assert "".join(pieces) == second.text
        assert second.prompt_tokens == held + len(" router")
        session.truncate(held)
        assert session.generate(" router", tokens=10, seed=4) == second
        session.truncate(0)
        assert session.generate("the small ", tokens=20, seed=3) == first


def test_a_draft_guesses_and_the_text_stays_the_same(
    folder: Path, text_file: Path, shared: moe.Model, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    moe.train(text_file, other, recipe="olmoe", steps=3, seed=4, **TINY)
    for seed in (3, 4):
        plain = shared.generate("the small ", tokens=20, seed=seed)
        assert plain.proposed == 0
        for draft in (folder, other):
            guessed = shared.generate(
                "the small ", tokens=20, seed=seed, draft=draft, draft_tokens=4, draft_min_p=0
            )
            assert guessed == plain
            assert 0 <= guessed.accepted <= guessed.proposed
            assert guessed.proposed > 0
            with shared.session(draft=draft, draft_min_p=0) as session:
                assert session.generate("the small ", tokens=20, seed=seed) == plain
    stream = shared.stream("the small ", tokens=20, seed=4, draft=folder)
    assert "".join(stream) == plain.text
    with pytest.raises(moe.Error, match="draft_tokens is of a draft model: add draft MODEL"):
        shared.session(draft_tokens=4)
    with pytest.raises(moe.Error, match="prompt_lookup and draft both guess"):
        shared.generate("the ", draft=folder, prompt_lookup=4)
    with shared.session(draft=folder) as session:
        with pytest.raises(moe.Error, match="draft is a session's own"):
            session.generate("the ", draft=folder)  # type: ignore[call-arg]


def test_a_full_session_says_what_to_do(shared: moe.Model) -> None:
    with shared.session(capacity=12) as session:
        assert session.generate("the ", tokens=50).tokens == 8
        with pytest.raises(
            moe.Error, match="its capacity is 12; truncate it, or open one with a larger capacity"
        ):
            session.prefill([1, 2])
        assert len(session) == 12


def test_what_has_no_meaning_is_refused(shared: moe.Model) -> None:
    with pytest.raises(moe.Error, match="capacity is -1"):
        shared.session(capacity=-1)
    with shared.session() as session:
        for call in (
            lambda: session.prefill([]),
            lambda: session.prefill([1], rows=2),
            lambda: session.prefill([-1]),
            lambda: session.truncate(-1),
            lambda: session.truncate(1),
            lambda: session.generate(""),
            lambda: session.generate("a", tokens=-1),
        ):
            with pytest.raises(moe.Error) as caught:
                call()
            assert caught.value.usage
        with pytest.raises(moe.Error, match="at work"):
            session.generate("a", on_text=lambda _: len(session))
        with pytest.raises(TypeError, match="open another one"):
            copy.copy(session)
    assert session.closed
    assert "closed" in repr(session)
    with pytest.raises(moe.Error, match="the session is closed"):
        session.prefill([1])


def test_a_session_outlives_its_model(folder: Path, shared: moe.Model) -> None:
    with moe.load(folder, threads=1) as model:
        session = model.session()
    assert session.generate("the ", tokens=9).text == shared.generate("the ", tokens=9).text
    session.close()


def test_two_sessions_of_one_model_in_two_threads_give_the_bits_of_one_after_the_other(
    folder: Path,
) -> None:
    def work(model: moe.Model, prompt: str) -> tuple[str, NDArray[np.float32]]:
        with model.session(capacity=500, threads=1) as session:
            logits = session.prefill(model.encode(prompt * 20), rows=5)
            text = session.generate(" and ", tokens=40, seed=2).text
            return text, np.concatenate([logits, session.prefill(model.encode("more"))])

    prompts = ["the small router ", "a large token "]
    with moe.load(folder, threads=1) as model:
        expected = [work(model, prompt) for prompt in prompts]
    for _ in range(3):
        with moe.load(folder, threads=1) as model:  # whose weights nobody has packed yet
            found: dict[int, tuple[str, NDArray[np.float32]]] = {}

            def run(
                place: int,
                model: moe.Model = model,
                found: dict[int, tuple[str, NDArray[np.float32]]] = found,
            ) -> None:
                found[place] = work(model, prompts[place])

            threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for place, (text, logits) in enumerate(expected):
            assert found[place][0] == text
            np.testing.assert_array_equal(found[place][1], logits)
