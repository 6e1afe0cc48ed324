"""A model against the command, and its own figures against each other."""

from __future__ import annotations

import copy
import gc
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from numpy_olmoe import NumpyOlmoe
from tiny import ONE_STEP, TINY

import moe_cpp as moe


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    z = logits.astype(np.float64)
    z -= z.max(axis=-1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(axis=-1, keepdims=True)))


def test_info_is_what_the_command_prints(
    shared: moe.Model, folder: Path, command: Callable[..., Any]
) -> None:
    assert shared.info == command("inspect", folder)
    assert shared.folder == str(folder)


def test_repr_names_folder_recipe_and_size(shared: moe.Model, folder: Path) -> None:
    assert (
        repr(shared)
        == f"<moe_cpp.Model {str(folder)!r}: recipe olmoe, 2 of 4 experts, 2 layers, {shared.info['parameters']['total']:,} parameters>"
    )


@pytest.mark.parametrize("seed", [0, 1, 2**63])
def test_generate_is_the_commands_text(
    shared: moe.Model, folder: Path, command: Callable[..., Any], seed: int
) -> None:
    ours = shared.generate(
        "the small ",
        tokens=60,
        temperature=1.1,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repeat_penalty=1.2,
        seed=seed,
    )
    sampling = [
        "--temperature",
        1.1,
        "--top-k",
        0,
        "--top-p",
        1,
        "--min-p",
        0,
        "--repeat-penalty",
        1.2,
        "--seed",
        seed,
    ]
    theirs = command("generate", folder, "-p", "the small ", "-n", 60, *sampling)
    assert (ours.text, ours.tokens, ours.prompt_tokens, ours.finish) == (
        theirs["text"],
        theirs["tokens"],
        theirs["prompt_tokens"],
        theirs["finish"],
    )
    assert str(ours) == ours.text


def test_defaults_are_the_commands(
    shared: moe.Model, folder: Path, command: Callable[..., Any]
) -> None:
    assert shared.generate("the ").text == command("generate", folder, "-p", "the ")["text"]


def test_generate_stops_before_a_text(shared: moe.Model) -> None:
    whole = shared.generate("the ", tokens=80, seed=5).text
    stop = whole[10:13]
    cut = shared.generate("the ", tokens=80, seed=5, stop=stop)  # one text, not three characters
    assert cut.finish == "stop"
    assert cut.text == whole[: whole.index(stop)]
    assert shared.generate("the ", tokens=80, seed=5, stop=["\x00", stop]).text == cut.text
    for none in ({"stop": None}, {"stop_strings": None}):
        assert shared.generate("the ", tokens=80, seed=5, **none).text == whole


def test_generate_takes_bytes(shared: moe.Model) -> None:
    assert (
        shared.generate("größer ".encode(), tokens=20).text
        == shared.generate("größer ", tokens=20).text
    )
    assert shared.generate(b"\xff\x00 the ", tokens=5).prompt_tokens == 7


def test_on_text_gets_the_text_and_can_end_it(shared: moe.Model) -> None:
    pieces: list[str] = []
    whole = shared.generate(
        "the ", tokens=80, temperature=1.5, top_k=0, seed=2, on_text=pieces.append
    )
    assert "".join(pieces) == whole.text
    assert len(pieces) > 10
    few: list[str] = []

    def three(text: str) -> bool:
        few.append(text)
        return len(few) == 3

    ended = shared.generate("the ", tokens=80, temperature=1.5, top_k=0, seed=2, on_text=three)
    assert ended.finish == "interrupted"
    assert few == pieces[:3]


def test_an_exception_of_on_text_comes_out_and_the_model_goes_on(shared: moe.Model) -> None:
    calls = 0

    def fails(_text: str) -> None:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        shared.generate("the ", tokens=200, on_text=fails)
    assert calls == 1
    assert shared.generate("the ", tokens=5).tokens == 5


def test_a_callback_cannot_use_its_own_model(folder: Path) -> None:
    with moe.load(folder, threads=1) as model:
        for inside in (lambda _: model.encode("x"), lambda _: model.close()):
            with pytest.raises(moe.Error, match="at work") as caught:
                model.generate("the ", on_text=inside)
            assert caught.value.usage
        assert model.encode("x").tolist() == [120]


def test_stream_is_generate_in_pieces(shared: moe.Model) -> None:
    stream = shared.stream("the ", tokens=60, seed=4)
    pieces = list(stream)
    assert len(pieces) > 10
    assert stream.generation == shared.generate("the ", tokens=60, seed=4)
    assert "".join(pieces) == stream.generation.text
    assert list(stream) == []


def test_a_stream_let_go_frees_the_model(shared: moe.Model) -> None:
    stream = shared.stream("the ", tokens=30_000)
    next(stream)
    del stream
    gc.collect()
    assert shared.generate("the ", tokens=3).tokens == 3
    with shared.stream("the ", tokens=30_000) as closed:
        next(closed)
    assert closed.generation is not None
    assert closed.generation.finish == "interrupted"
    assert not any(thread.name == "moe_cpp stream" for thread in threading.enumerate())


def test_a_stream_raises_what_went_wrong(shared: moe.Model) -> None:
    with pytest.raises(moe.Error, match="temperature"):
        list(shared.stream("the ", temperature=-1.0))


@pytest.mark.parametrize("window", [16, 64])
def test_score_is_the_commands(
    shared: moe.Model, folder: Path, text_file: Path, command: Callable[..., Any], window: int
) -> None:
    ours = shared.score(text_file.read_text(encoding="utf-8"), window=window)
    theirs = command(
        "score", folder, "--text", text_file, "--window", window, "--threads", 1, "--per-token"
    )
    for name in (
        "nats_per_token",
        "perplexity",
        "bits_per_byte",
        "tokens",
        "windows",
        "window",
        "routing",
        "causal",
    ):
        assert getattr(ours, name) == theirs[name], name
    scored = ours.windows * window
    assert ours.ids[:scored].tolist() == theirs["ids"]
    expected = np.array([np.nan if p is None else p for p in theirs["logprobs"]], np.float32)
    np.testing.assert_array_equal(ours.logprobs[:scored], expected)
    assert np.isnan(ours.logprobs[scored:]).all()
    assert ours.logprobs.dtype == np.float32
    assert ours.logprobs.shape == ours.ids.shape
    assert ours.nats_per_token == pytest.approx(
        -np.nanmean(ours.logprobs.astype(np.float64)), rel=1e-6
    )


def test_score_of_ids_and_of_some_windows(shared: moe.Model) -> None:
    ids = shared.encode("the small router learns " * 30)
    two, short = shared.score(ids, window=32, windows=2), shared.score(ids[:64], window=32)
    assert two.windows == short.windows == 2
    assert two.nats_per_token == short.nats_per_token
    np.testing.assert_array_equal(two.logprobs[:64], short.logprobs)
    assert np.isnan(two.logprobs[64:]).all()
    assert np.isnan(two.logprobs).sum() == ids.size - 62


def test_logits_agree_with_the_scores_logprobs(shared: moe.Model) -> None:
    ids = shared.encode("the large expert routes a token and then 字 größer")[:60]
    logits = shared.logits(ids)
    assert logits.shape == (ids.size, shared.info["vocab"])
    assert logits.dtype == np.float32
    logprobs = log_softmax(logits)[np.arange(ids.size - 1), ids[1:]]
    np.testing.assert_allclose(
        logprobs, shared.score(ids, window=ids.size).logprobs[1:], rtol=0, atol=1e-5
    )


def test_logits_do_not_depend_on_later_tokens(shared: moe.Model) -> None:
    ids = shared.encode("the large expert routes")
    np.testing.assert_array_equal(shared.logits(ids)[:8], shared.logits(ids[:8]))


def test_the_likeliest_token_is_what_temperature_0_takes(shared: moe.Model) -> None:
    prompt = "the small "
    first = shared.generate(prompt, tokens=1, temperature=0).text
    assert shared.decode([int(shared.logits(shared.encode(prompt))[-1].argmax())]) == first


def test_routing_has_each_choice_once_and_weights_of_a_softmax(shared: moe.Model) -> None:
    ids = shared.encode("the large expert routes a token")
    routing = shared.routing(ids)
    assert routing.experts.shape == routing.weights.shape == (2, ids.size, 2)
    assert routing.experts.dtype == np.int32
    assert routing.weights.dtype == np.float32
    assert ((routing.experts >= 0) & (routing.experts < 4)).all()
    assert (routing.experts[..., 0] != routing.experts[..., 1]).all()
    assert (routing.weights[..., 0] >= routing.weights[..., 1]).all()
    assert (routing.weights > 0).all()
    assert (routing.weights.sum(-1) < 1).all()  # olmoe does not renormalise
    assert len(np.unique(routing.experts)) == 4


@pytest.mark.parametrize("recipe", ["olmoe", "mixtral"])
def test_logits_and_routing_of_numpy(tmp_path: Path, text_file: Path, recipe: str) -> None:
    moe.train(text_file, tmp_path / "m", recipe=recipe, architecture="olmoe", steps=20, **TINY)
    with moe.load(tmp_path / "m", threads=1) as model:
        ids = model.encode("the large expert routes a small token and reads a 字 line")
        logits, experts, weights = NumpyOlmoe(tmp_path / "m").forward(ids.tolist())
        routing = model.routing(ids)
        np.testing.assert_array_equal(routing.experts, experts)
        np.testing.assert_allclose(routing.weights, weights, rtol=1e-4)
        assert np.abs(logits).max() > 1
        np.testing.assert_allclose(model.logits(ids), logits, rtol=0, atol=1e-4)


def test_hash_routing_is_the_recipes_on_the_same_ids(tmp_path: Path, text_file: Path) -> None:
    moe.train(text_file, tmp_path / "m", recipe="hash", layers=1, experts=4, **ONE_STEP)
    with moe.load(tmp_path / "m", threads=1) as model:
        ids = model.encode("the large expert")
        routing = model.routing(ids)
    worked = moe.route(recipe="hash", ids=ids, experts=4)
    np.testing.assert_array_equal(routing.experts[0], worked.experts)
    np.testing.assert_array_equal(routing.weights[0], worked.weights)


def test_a_dense_model_routes_nothing(tmp_path: Path, text_file: Path) -> None:
    moe.train(text_file, tmp_path / "m", recipe="dense", layers=1, **ONE_STEP)
    with moe.load(tmp_path / "m", threads=1) as model:
        assert model.routing([1, 2, 3]).experts.shape == (0, 3, 0)
        assert "dense" in repr(model)


@pytest.mark.parametrize("text", ["", "plain", "größer 字 🦀", "a\x00b"])
def test_encode_and_decode(shared: moe.Model, text: str) -> None:
    ids = shared.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == list(text.encode())  # every byte is a token
    assert ids.flags.writeable
    assert shared.decode(ids) == text
    assert shared.decode_bytes(ids) == text.encode()


def test_bytes_that_are_no_text(shared: moe.Model) -> None:
    assert shared.decode_bytes(shared.encode(b"\xff\xfe\x00")) == b"\xff\xfe\x00"
    assert shared.decode([0xE5, 0xAD]) == "\ufffd"
    assert (
        shared.encode(bytearray(b"ab")).tolist()
        == shared.encode(memoryview(b"ab")).tolist()
        == [97, 98]
    )


def test_save_and_load_give_the_same_model(shared: moe.Model, tmp_path: Path) -> None:
    ids = shared.encode("the large expert routes")
    shared.save(tmp_path / "f32")
    with moe.load(tmp_path / "f32", threads=1) as again:
        np.testing.assert_array_equal(again.logits(ids), shared.logits(ids))
    shared.save(str(tmp_path / "bf16"), dtype="bf16")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("f32", "bf16")]
    assert 1.8 < sizes[0] / sizes[1] < 2.2
    with moe.load(tmp_path / "bf16", threads=1) as again:
        assert 0 < np.abs(again.logits(ids) - shared.logits(ids)).max() < 0.2


def test_bf16_products(folder: Path, shared: moe.Model) -> None:
    with moe.load(folder, threads=1, dtype="bf16") as model:
        assert model.score("the small router " * 20).nats_per_token == pytest.approx(
            shared.score("the small router " * 20).nats_per_token, rel=0.02
        )


def test_a_closed_model_says_so(folder: Path) -> None:
    model = moe.load(folder, threads=1)
    with model:
        assert not model.closed
    model.close()
    assert model.closed
    assert "closed" in repr(model)
    for call in (
        lambda: model.encode("x"),
        lambda: model.generate("x"),
        lambda: model.logits([1]),
        lambda: model.save("x"),
    ):
        with pytest.raises(moe.Error, match="closed") as caught:
            call()
        assert caught.value.usage


def test_a_model_is_not_copied(shared: moe.Model) -> None:
    with pytest.raises(TypeError, match="load the folder again"):
        copy.copy(shared)


def test_threads_take_turns_on_one_model_and_work_at_once_on_two(
    folder: Path, shared: moe.Model
) -> None:
    expected = [shared.generate("the ", tokens=40, seed=seed).text for seed in range(4)]
    found: dict[tuple[int, int], str] = {}
    with moe.load(folder, threads=1) as other:

        def work(place: int, model: moe.Model) -> None:
            for seed in range(4):
                found[place, seed] = model.generate("the ", tokens=40, seed=seed).text

        threads = [
            threading.Thread(target=work, args=(i, (shared, other)[i % 2])) for i in range(6)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {(i, seed): expected[seed] for i in range(6) for seed in range(4)}


def resident() -> int:
    """Bytes of this process in memory (proc(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_the_library_hands_out_is_freed(shared: moe.Model, folder: Path) -> None:
    text = b"the small router " * 60_000  # 1 MB; its ids 4 MB

    def use() -> None:
        shared.decode_bytes(shared.encode(text))
        with moe.load(folder, threads=1):
            pass
        moe.load(folder, threads=1)  # closed by the last reference

    use()
    before = resident()
    for _ in range(40):
        use()
    assert resident() - before < 60e6  # 40 encodings are 160 MB, 40 decodings 40 MB


def test_python_runs_on_while_the_library_works(shared: moe.Model) -> None:
    ids = shared.encode("the small router learns " * 2000)
    worker = threading.Thread(target=shared.score, args=(ids,), kwargs={"window": 64})
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
        worker.join(0.001)
    assert turns > 3
