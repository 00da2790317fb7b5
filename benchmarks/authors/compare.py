"""Compare our credit and losses with their authors' functions, on stored inputs and outputs.

    python benchmarks/authors/compare.py             # prints the table; fetches nothing
    python benchmarks/authors/compare.py --publish   # and puts it into docs/benchmarks.md

``vectors/`` holds what the authors' functions gave, once, on random numbers of ours; each file
names repository, commit, file and functions. The exit status is 1 where a row is neither equal nor
explained.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ours import (
    Ours,
    archer_actor,
    archer_critic,
    archer_polyak,
    best_of_n,
    coarse,
    coarse_without_zeros,
    divergence,
    group_credit,
    loss,
    offline_archer_critic,
    preferences,
    spa_estimator,
    sweet_critic,
    token_credit,
    turn_credit,
)

VECTORS = Path(__file__).parent / "vectors"
PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- authors: begin -->", "<!-- authors: end -->"
EQUAL = 1e-5
"""Up to this two results are equal; ours and the stored ones are double precision with 9 digits."""
HEADER = "| method | authors' function | cases | largest difference | verdict |"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One of our methods and one of their functions."""

    method: str
    """A preset, and what was set beside it."""
    vectors: str
    """File of their outputs."""
    ours: Ours
    """What we make of an input."""
    reason: str = ""
    """Why it differs; empty where it must be equal."""
    setting: str = ""
    """What makes it equal."""
    explained: Ours | None = None
    """What we make of an input with that; None where nothing makes it equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What came of a comparison."""

    comparison: Comparison
    source: dict[str, Any]
    cases: int
    difference: float
    """Largest absolute one, with the method as it is."""
    remaining: float | None
    """The same with the setting that explains it."""

    @property
    def is_sound(self) -> bool:
        """Equal, or as different as it is explained to be."""
        if not self.comparison.reason:
            return self.difference <= EQUAL
        kept = self.remaining is None or self.remaining <= EQUAL
        return kept and self.difference > EQUAL

    @property
    def verdict(self) -> str:
        """The last cell of the table."""
        reason, setting = self.comparison.reason, self.comparison.setting
        if reason and self.difference <= EQUAL:
            return "NOT EXPLAINED: equal, though a difference is explained"
        if not reason:
            return "equal" if self.is_sound else "NOT EXPLAINED: differs"
        if self.remaining is not None and not self.is_sound:
            return f"NOT EXPLAINED: differs also with {setting}"
        return f"differs: {reason}" + (f"; equal with {setting}" if setting else "")


def _terms(*settings: str) -> list[str]:
    return [f"advantage.terms.{text}" for text in settings]


def _same(method: str, vectors: str, ours: Ours) -> Comparison:
    return Comparison(method=method, vectors=vectors, ours=ours)


_STD = _terms("0.scale=std", "1.scale=std")
_OFFSET = "advantage.terms.0.history_offset=1"
_POPULATION = _terms("0.scale=population_std")
_UI_CODE = _terms("1.returns=reward_to_go", "1.gamma=0", "1.unit=turn")
_TO_GO = _terms("0.returns=reward_to_go", "0.unit=turn")
_TOKENS = ["advantage.batch.unit=token", "advantage.batch.eps=1e-8", "advantage.terms.0.eps=1e-6"]
_CLIP_COV = ["loss.covariance.share=1.0", "loss.covariance.low=0.3"]
_KEPT = "loss.correction.denominator=kept"

CREDIT = [
    _same("grpo", "grpo", group_credit("grpo")),
    _same("rloo", "rloo", group_credit("rloo")),
    _same("opo", "opo", group_credit("opo")),
    _same("dr_grpo", "dr_grpo", group_credit("dr_grpo")),
    _same("reinforce_pp_baseline", "reinforce_pp_baseline", group_credit("reinforce_pp_baseline")),
    Comparison(
        method="reinforce_pp",
        vectors="reinforce_pp",
        ours=group_credit("reinforce_pp"),
        reason="a token gets what is earned from it on, ours the whole outcome (the same where the "
        "reward comes last)",
        setting="`terms.0.returns=reward_to_go terms.0.unit=turn`",
        explained=group_credit("reinforce_pp", *_TO_GO),
    ),
    _same("gdpo", "gdpo_trl", group_credit("gdpo", rewards="parts", equal=True)),
    Comparison(
        method="gdpo",
        vectors="gdpo_verl",
        ours=group_credit("gdpo", rewards="parts"),
        reason="their second form counts tokens in the batch's scale",
        setting="`batch.unit=token batch.eps=1e-8 terms.0.eps=1e-6`",
        explained=group_credit("gdpo", *_TOKENS, rewards="parts"),
    ),
    _same("gigpo", "gigpo_mean_norm", group_credit("gigpo")),
    _same("gigpo, `scale=std`", "gigpo_mean_std_norm", group_credit("gigpo", *_STD)),
    Comparison(
        method="hgpo",
        vectors="hgpo_mean_norm",
        ours=group_credit("hgpo"),
        reason="depths weigh 2, 3, 4 in the code and 1, 2, 3 in the paper",
        setting="`terms.0.history_offset=1`",
        explained=group_credit("hgpo", _OFFSET),
    ),
    _same(
        "hgpo, `history_offset=1 scale=population_std`",
        "hgpo_mean_std_norm",
        group_credit("hgpo", _OFFSET, *_POPULATION),
    ),
    Comparison(
        method="ui_s1",
        vectors="ui_s1",
        ours=group_credit("ui_s1", rewards="match"),
        reason="the code compares single rewards where the paper compares the episode's return",
        setting="`terms.1.returns=reward_to_go terms.1.gamma=0 terms.1.unit=turn`",
        explained=group_credit("ui_s1", *_UI_CODE, rewards="match"),
    ),
    _same("igpo", "igpo_separate_1", group_credit("igpo")),
    _same("igpo, `gamma=0.5`", "igpo_separate_05", group_credit("igpo", *_terms("0.gamma=0.5"))),
    _same(
        "igpo, `normalization=joint`",
        "igpo_joint_1",
        group_credit("igpo", *_terms("0.normalization=joint")),
    ),
    Comparison(
        method="igpo, some gains exactly 0",
        vectors="igpo_zeros",
        ours=group_credit("igpo", gains=coarse),
        reason="the code takes a turn whose gain is exactly 0 for a part of the next",
        setting="gains of 0 left out (no setting)",
        explained=group_credit("igpo", gains=coarse_without_zeros),
    ),
    _same("infopo", "infopo", group_credit("infopo")),
    Comparison(
        method="trloo",
        vectors="trloo",
        ours=group_credit("trloo"),
        reason="a turn that one attempt alone reached keeps its return, ours gets 0",
        setting="`terms.0.group_of_one=raw`",
        explained=group_credit("trloo", *_terms("0.group_of_one=raw")),
    ),
    _same("ppo, all ends final", "gae_token", token_credit("ppo")),
    _same("vl_dac, GAE before the batch's scale", "gae_turn", turn_credit("vl_dac")),
    _same("bilevel_gae, all turns paid", "bilevel_gae", token_credit("bilevel_gae")),
    Comparison(
        method="bilevel_gae",
        vectors="bilevel_gae_zeros",
        ours=token_credit("bilevel_gae"),
        reason="the code takes rewards that are not 0 for the ends of turns",
        setting="turns that earned nothing joined to the next (no setting)",
        explained=token_credit("bilevel_gae", joins_unpaid=True),
    ),
    _same("archer, critic: loss and gradient", "archer_critic", archer_critic),
    _same("archer, policy: loss and gradient", "archer_actor", archer_actor),
    _same("archer, target critic", "archer_polyak", archer_polyak),
    _same(
        "offline_archer, critic: loss and gradient", "offline_archer_critic", offline_archer_critic
    ),
    _same("digi_q, which candidate is imitated", "digi_q", best_of_n),
    Comparison(
        method="sweet, critic: loss and gradient",
        vectors="sweet_critic",
        ours=sweet_critic(),
        reason="the code ranks by means over an attempt's tokens, the paper by sums over turns",
        setting="`rewards.1.objective=token_mean`",
        explained=sweet_critic("rewards.1.objective=token_mean"),
    ),
    _same("spa, estimator: loss and gradient", "spa_estimator", spa_estimator),
]

LOSSES = [
    _same("ppo", "loss_ppo", loss("ppo")),
    _same("grpo", "loss_grpo", loss("grpo")),
    _same("gigpo (dual clip)", "loss_dual_clip", loss("gigpo")),
    _same("dapo", "loss_dapo", loss("dapo")),
    _same("dr_grpo", "loss_dr_grpo", loss("dr_grpo")),
    _same("gspo", "loss_gspo", loss("gspo")),
    _same("sapo", "loss_sapo", loss("sapo")),
    _same("cispo", "loss_cispo", loss("cispo")),
    _same("gmpo", "loss_gmpo", loss("gmpo", advantages="outcome")),
    _same("dppo", "loss_dppo", loss("dppo")),
    _same("rloo", "loss_rloo", loss("rloo")),
    _same(
        "kl_cov, `covariance.share=0.1`", "loss_kl_cov", loss("kl_cov", "loss.covariance.share=0.1")
    ),
    _same(
        "clip_cov, `covariance.share=1 covariance.low=0.3`",
        "loss_clip_cov",
        loss("clip_cov", *_CLIP_COV),
    ),
    _same("tis", "loss_tis", loss("tis")),
    _same("icepop", "loss_icepop", loss("icepop")),
    Comparison(
        method="mis",
        vectors="loss_mis",
        ours=loss("mis"),
        reason="the mean is over the tokens that are kept, ours over all that were sampled",
        setting="`loss.correction.denominator=kept`",
        explained=loss("mis", _KEPT),
    ),
    _same("dmpo, gradient", "loss_dmpo", preferences("dmpo")),
    _same("dpo, gradient", "loss_dpo", preferences("dpo")),
    _same(
        "dpo, `surrogate.link=square` (IPO), gradient",
        "loss_ipo",
        preferences("dpo", "loss.surrogate.link=square"),
    ),
    _same(
        "dpo, `surrogate.link=hinge` (SLiC), gradient",
        "loss_slic",
        preferences("dpo", "loss.surrogate.link=hinge"),
    ),
    *(
        _same(f"KL estimate `{name}`", f"kl_{name}", divergence(name))
        for name in ("k1", "k2", "k3", "k1_plus", "k3_plus")
    ),
]


def read(name: str) -> dict[str, Any]:
    """Return a file of vectors."""
    found: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def compare(comparison: Comparison) -> Finding:
    """Run our side of a comparison on every case.

    Raises:
        ValueError: We give more or fewer numbers than they do.
    """
    theirs = read(comparison.vectors)
    cases = read(f"inputs_{theirs['inputs']}")["cases"]
    cases = cases[theirs["first_case"] :][: len(theirs["outputs"])]

    def largest(ours: Ours) -> float:
        gaps = [0.0]
        for number, (case, wanted) in enumerate(zip(cases, theirs["outputs"], strict=True)):
            found = ours(case)
            if found.shape != (len(wanted),):
                raise ValueError(
                    f"{comparison.vectors}.json, case {number}: we give {found.shape} numbers, "
                    f"the authors' function gave {len(wanted)}"
                )
            gaps.append(float(np.abs(found - np.array(wanted)).max()))
        return float(np.max(gaps))  # unlike max(), it lets NaN through

    explained = comparison.explained
    return Finding(
        comparison=comparison,
        source=theirs["source"],
        cases=len(cases),
        difference=largest(comparison.ours),
        remaining=None if explained is None else largest(explained),
    )


def table(findings: Sequence[Finding]) -> str:
    """Return the findings as a table."""
    rows = [HEADER, "|---|---|---|---|---|"]
    for finding in findings:
        source = finding.source
        functions = ", ".join(f"`{name}`" for name in source["functions"])
        where = f"{functions}, {source['repository']}"
        gap = f"{finding.difference:.0e}"
        if finding.remaining is not None:
            gap += f"; {finding.remaining:.0e}"
        rows.append(
            f"| {finding.comparison.method} | {where} | {finding.cases} | {gap} | "
            f"{finding.verdict} |"
        )
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--publish", action="store_true", help="put the table into the docs")
    publish = parser.parse_args(arguments).publish
    parts = {"Credit": CREDIT, "Losses, value and gradient": LOSSES}
    findings = {title: [compare(each) for each in rows] for title, rows in parts.items()}
    text = "\n".join(f"\n{title}:\n\n{table(rows)}\n" for title, rows in findings.items())
    print(text)
    if publish:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    return int(not all(each.is_sound for rows in findings.values() for each in rows))


if __name__ == "__main__":
    sys.exit(main())
