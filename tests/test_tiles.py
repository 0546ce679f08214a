"""The tile adapter: tiles cover a picture, MaxSim is the best tile whatever the grouping, vectors are kept and checked."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from delivermem import tiles


@settings(max_examples=60, deadline=None)
@given(
    width=st.integers(1, 900),
    height=st.integers(1, 900),
    n=st.integers(1, 4),
    overlap=st.sampled_from([0.0, 0.25, 0.5]),
)
def test_tiles_cover_the_picture_and_overlap_as_stated(width, height, n, overlap):
    found = tiles.boxes((width, height), n, overlap=overlap)
    if len(found) == 1:
        assert found == [(0, 0, width, height)]
        assert n == 1 or min(width, height) / (n - (n - 1) * overlap) < tiles.LEAST_SIDE
        return
    assert len(found) == n * n
    seen = np.zeros((height, width), bool)
    for left, top, right, bottom in found:
        assert 0 <= left < right <= width and 0 <= top < bottom <= height
        seen[top:bottom, left:right] = True
    assert seen.all()
    (first, _, end, _), (second, *_) = found[:2]
    assert abs((end - second) - overlap * (end - first)) <= 1.5


@pytest.mark.parametrize("wrong", [dict(n=0), dict(n=2, overlap=1.0), dict(n=2, overlap=-0.1)])
def test_a_grid_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(ValueError, match="overlap"):
        tiles.boxes((100, 100), **wrong)


def test_the_whole_comes_first_and_a_tiny_picture_is_whole_once():
    image = Image.new("RGB", (100, 60))
    assert [tile.size for tile in tiles.cut(image, 2, whole=True)] == [(100, 60), *[(57, 34)] * 4]
    assert [tile.size for tile in tiles.cut(Image.new("RGB", (20, 20)), 4, whole=True)] == [(20, 20)]


def test_random_crops_have_the_tiles_sizes_and_follow_the_seed():
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), dtype=np.uint8))
    grid, crops = tiles.cut(image, 3), tiles.cut(image, 3, seed=1)
    assert [crop.size for crop in crops] == [tile.size for tile in grid]
    assert [c.tobytes() for c in crops] == [c.tobytes() for c in tiles.cut(image, 3, seed=1)]
    assert [c.tobytes() for c in crops] != [c.tobytes() for c in tiles.cut(image, 3, seed=2)]
    whole = tiles.cut(image, 3, whole=True, seed=1)
    assert whole[0].size == image.size and [c.tobytes() for c in whole[1:]] == [c.tobytes() for c in crops]
    tiny = Image.new("RGB", (20, 20))
    assert [c.size for c in tiles.cut(tiny, 4, seed=1)] == [(20, 20)]


def _index(rng, sizes, d=8, dtype=np.float32):
    vectors = rng.normal(size=(sum(sizes), d)).astype(dtype)
    return tiles.Index(vectors, np.concatenate([[0], np.cumsum(sizes)]))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1000), sizes=st.lists(st.integers(1, 5), min_size=1, max_size=9))
def test_maxsim_is_the_best_tile_of_each_picture(seed, sizes):
    rng = np.random.default_rng(seed)
    index, queries = _index(rng, sizes), rng.normal(size=(3, 8)).astype(np.float32)
    by_hand = [
        [
            max(float(q @ v) for v in index.vectors[a:b])
            for a, b in zip(index.offsets, index.offsets[1:], strict=False)
        ]
        for q in queries
    ]
    np.testing.assert_allclose(index.scores(queries), by_hand, rtol=1e-5, atol=1e-5)


def test_all_negative_scores_are_not_raised_to_zero():
    index = tiles.Index(-np.eye(2, dtype=np.float32), [0, 1, 2])
    assert index.scores(np.ones((1, 2), np.float32)).max() == -1


def test_ties_go_by_the_key_and_k_above_the_store_gives_the_store():
    vectors = np.array([[1, 0], [1, 0], [0, 1], [1 - 1e-9, 0]], np.float32)
    index = tiles.Index(vectors, range(5))
    keys = [(2, "a"), (1, "z"), (0, "m"), (1, "b")]
    assert index.rank(np.array([1, 0], np.float32), 99, keys) == [3, 1, 0, 2]
    assert index.rank(np.array([1, 0], np.float32), 2, keys) == [3, 1]


@pytest.mark.parametrize(
    ("vectors", "offsets", "says"),
    [
        (np.array([[1.0, np.nan], [0, 1]], np.float32), [0, 1, 2], "picture 0"),
        (np.array([[1.0, 0], [np.inf, 1]], np.float16), [0, 1, 2], "picture 1"),
        (np.ones((2, 2), np.float32), [0, 0, 2], "tile or more"),
        (np.ones((2, 2), np.float32), [0, 1], "rise from 0 to 2"),
        (np.ones((2, 2)), [0, 1, 2], "float16 or float32"),
    ],
)
def test_vectors_that_can_not_be_scored_are_refused(vectors, offsets, says):
    with pytest.raises(tiles.TileError, match=says):
        tiles.Index(vectors, offsets)


def test_half_precision_scores_as_its_own_numbers_do():
    rng = np.random.default_rng(0)
    half = _index(rng, [2, 3], dtype=np.float16)
    query = rng.normal(size=(1, 8)).astype(np.float32)
    single = tiles.Index(half.vectors.astype(np.float32), half.offsets)
    np.testing.assert_array_equal(half.scores(query), single.scores(query))


def test_vectors_are_encoded_once_and_kept(tmp_path):
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(3)]
    calls = []

    def encode(batch):
        calls.append(len(batch))
        return np.stack([np.asarray(tile.resize((2, 2)), np.float32).ravel() for tile in batch])

    def make(**other):
        names = other.pop("names", ["a", "b", "c"])
        return tiles.build(images, names, encode, other.pop("n", 2), encoder="e@1", folder=tmp_path, **other)

    first, again = make(), make()
    assert calls == [12] and isinstance(again.vectors, np.memmap)
    np.testing.assert_array_equal(first.vectors, again.vectors)
    make(n=1), make(whole=True), make(overlap=0.5), make(names=["a", "b", "d"])
    assert calls == [12, 3, 15, 12, 12]
    assert len(list(tmp_path.glob("*.npy"))) == 5 and not list(tmp_path.glob("*.part"))


def test_what_is_not_finite_is_not_written(tmp_path):
    image = Image.new("RGB", (64, 64))
    with pytest.raises(tiles.TileError, match="not finite"):
        tiles.build([image], ["a"], lambda b: np.full((len(b), 3), np.nan), 2, encoder="e", folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_empty_store_ranks_nothing():
    index = tiles.build([], [], lambda b: np.zeros((len(b), 3)), 2, encoder="e")
    assert len(index) == 0 and index.rank(np.zeros(1, np.float32), 5, []) == []


def test_kept_vectors_that_are_damaged_are_made_anew(tmp_path):
    image = Image.new("RGB", (64, 64), "red")

    def make():
        return tiles.build(
            [image], ["a"], lambda b: np.ones((len(b), 3), np.float32), 2, encoder="e", folder=tmp_path
        )

    make()
    (path,) = tmp_path.iterdir()
    for damage in (b"", path.read_bytes()[:60], b"not numpy"):
        path.write_bytes(damage)
        with pytest.warns(UserWarning, match="made anew"):
            assert (make().vectors == 1).all()
    assert isinstance(make().vectors, np.memmap)
