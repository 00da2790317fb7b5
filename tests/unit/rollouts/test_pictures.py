import pickle
from pathlib import Path

import numpy as np
import pytest

from helpers.envs import LadderEnv
from turngym.agents.scripted import ExpertPolicy
from turngym.errors import RecordError
from turngym.pictures import PictureFolder, name_of, number_of, pixels_of, png
from turngym.rollouts.episode import EpisodeSpec, rollout


def noise(seed: int, height: int = 5, width: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def test_a_png_holds_the_pixels(tmp_path: Path):
    from matplotlib.image import imread

    (tmp_path / "a.png").write_bytes(png(noise(0)))
    np.testing.assert_array_equal(
        np.round(imread(tmp_path / "a.png") * 255).astype(np.uint8), noise(0)
    )


def test_equal_pictures_are_kept_once_and_different_ones_apart(tmp_path: Path):
    keep = PictureFolder(tmp_path)
    names = [keep(noise(0)), keep(noise(0)), keep(noise(1)), keep(noise(0).reshape(7, 5, 3))]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert sorted(p.name for p in (tmp_path / "pictures").iterdir()) == sorted(set(names))


@pytest.mark.extra("PIL")
@pytest.mark.parametrize("kind", ["png", "webp"])
def test_a_file_of_any_kind_is_read_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from PIL import Image

    Image.fromarray(noise(0)).save(file := tmp_path / f"a.{kind}", lossless=True)
    keep = PictureFolder(tmp_path)
    number = keep.keep_file(file.read_bytes())
    monkeypatch.setattr("turngym.pictures.pixels_in", None)
    assert keep.keep_file(file.read_bytes()) == number == keep.keep(noise(0))


@pytest.mark.extra("PIL")
@pytest.mark.parametrize("file", [b"", b"no image", png(noise(0))[:60]])
def test_a_file_that_cannot_be_read_is_refused(file: bytes):
    with pytest.raises(ValueError, match=r"no picture that can be read: [^<]+$"):
        PictureFolder().keep_file(file)


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 2)), np.zeros((2, 2, 3)), np.zeros((2, 2, 4), "u1")]
)
def test_anything_else_is_refused(tmp_path: Path, wrong: np.ndarray):
    with pytest.raises(ValueError, match=r"uint8 \[H, W, 3\]"):
        PictureFolder(tmp_path)(wrong)


class Painted(LadderEnv):
    """A ladder with a picture of each rung."""

    def reset(self, **options):
        observation, info = super().reset(**options)
        return {**observation, "image": noise(100)}, info

    def step(self, action):
        observation, *rest = super().step(action)
        return {**observation, "image": noise(len(observation["text"]))}, *rest


async def test_a_rollout_keeps_what_the_agent_saw_before_each_turn_and_at_the_end(tmp_path: Path):
    env = Painted(slip=0.0, top=3)
    spec = EpisodeSpec(env_id="ladder", task=env.task("train", 0), env_seed=0, policy_seed=0)
    keep = PictureFolder(tmp_path)
    found = await rollout(env, ExpertPolicy(), spec, keep_picture=keep)
    assert found.turns[0].picture == keep(noise(100))
    assert found.final_picture == keep(noise(len(found.final_observation[0].content)))
    bare = await rollout(Painted(slip=0.0, top=3), ExpertPolicy(), spec)
    assert {turn.picture for turn in bare.turns} == {None}


def test_a_kept_picture_is_read_back_by_another_process_too(tmp_path: Path):
    number = PictureFolder(tmp_path).keep(noise(3))
    np.testing.assert_array_equal(PictureFolder(tmp_path).pixels(number), noise(3))
    assert number_of(name_of(number)) == number
    with pytest.raises(RecordError, match=r"00000001\.png: what was seen cannot be read"):
        PictureFolder(tmp_path).pixels(1)


def test_a_number_that_another_picture_has_is_passed_over(tmp_path: Path):
    number = PictureFolder(tmp_path).keep(noise(0))
    (tmp_path / "pictures" / name_of(number)).write_bytes(png(noise(1)))
    keep = PictureFolder(tmp_path)
    assert keep.keep(noise(0)) == number + 1 == PictureFolder(tmp_path).keep(noise(0))
    np.testing.assert_array_equal(keep.pixels(number), noise(1))


def test_a_folder_of_its_own_is_shared_with_who_gets_it():
    keep = PictureFolder()
    other = pickle.loads(pickle.dumps(keep))
    np.testing.assert_array_equal(other.pixels(keep.keep(noise(0))), noise(0))
    number = keep.keep(noise(1))
    del keep
    with pytest.raises(RecordError):
        other.pixels(number)


@pytest.mark.parametrize("file", [b"", b"\x89PNG", png(noise(0))[:60]])
def test_a_broken_file_is_no_picture(file: bytes):
    with pytest.raises(ValueError, match="no PNG file of ours"):
        pixels_of(file)
