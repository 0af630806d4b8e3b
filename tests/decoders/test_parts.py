"""Parts off their yaml: what goes together is declared, and whatever else is put together is refused in a sentence or
keeps every promise of the loop."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from conftest import make_model
from hydra.utils import instantiate
from hypothesis import given, settings, strategies as st
from omegaconf import OmegaConf

import decoders as d
from decoders import NO_CACHE, Decoder, FixedK, Never, Threshold, decode
from decoders.remask import Renoise
from decoders.rules.remasking import LoopRemask, NarrowOut, ReMdmRemask
from decoders.testing import NOISY, SPEC, HashModel, example_view
from decoders.types import ANY, CommitRule
from dllm.cache import WindowCache
from parallelbench.wiring.catalogue import CONF

FILES = sorted(path for path in (CONF / "decoder").glob("*.yaml") if "_target_: decoders.Decoder\n" in path.read_text())
RULES: list[Callable[[], CommitRule]] = [
    *(lambda k=k: FixedK(k) for k in (1, 3, "all")),
    *(lambda tau=tau: Threshold(tau) for tau in (0.3, 2.0)),
    d.Agreement,
    d.Contention,
    d.Dilated,
    lambda: d.Dilated(by="confidence", keep=0.4),
    d.Dimple,
    lambda: d.Dimple(0.9, 6, above="confidence", fallback="each"),
    lambda: d.DreamOrigin(5),
    lambda: d.DreamSchedule(5),
    d.DynamicThreshold,
    lambda: d.EntropyBound(1.0),
    lambda: d.EntropyThreshold(1.0),
    d.Factor,
    lambda: d.FirstAlone(d.EntropyThreshold(1.0)),
    d.Frechet,
    lambda: d.Hierarchical(0.5, 0.3),
    d.Horizon,
    lambda: d.Klass(0.3, 1.0, history=1),
    d.Learn2PD,
    d.LeftRun,
    lambda: d.LoopMdm(5, 2, 2, 3),
    lambda: d.MaskGit(5),
    d.Oracle,
    d.Prefix,
    lambda: d.Prophet((2.0, 1.0, 0.5), base=d.DreamSchedule(5)),
    lambda: d.ReMdm(7, "conf", 0.5),
    d.RunningMean,
    lambda: d.Schedule(4),
    lambda: d.ThresholdOrSchedule(4, 0.5),
    d.WarmThreshold,
    lambda: d.Wino(0.3, 0.5),
]
REVISIONS = [
    *[None] * 6,
    d.ConfidenceDrop(2.0),
    d.TokenEdit(0.3, 3),
    d.TokenEdit(0.0, 3, remask=True),
    d.RunningConfidence(d.MaskGit(4, "linear")),
    d.SlowFast(0.5, explore=2),
    d.InDel(budget=3),
    Renoise(steps=6),
    LoopRemask(d.LoopMdm(5, 2, 2, 3)),
    ReMdmRemask(d.ReMdm(9)),
    NarrowOut(d.Wino()),
]
RESCORES = [
    (),
    (),
    (),
    (d.OriginalProb(),),
    (d.EosLast(),),
    (d.OrderNoise(),),
    (d.PositionPrior(),),
    (d.DensityPrior(),),
]
TRANSFORMS = [(), (), (d.Credit(),), (d.Temperature(0.5), d.TopP(0.9)), (d.TopK(4),), (d.BanEos(),), (d.Cooling(),)]
SOFT = [*[None] * 6, d.Smoothing(), d.Slerp(), d.SelfDoubt()]


PARTS = st.fixed_dictionaries(  # arguments of decoders
    {
        "rule": st.sampled_from(RULES).map(lambda make: make()),
        "revise": st.sampled_from(REVISIONS),
        "rescore": st.sampled_from(RESCORES),
        "transforms": st.sampled_from(TRANSFORMS),
        "soft": st.sampled_from(SOFT),
        "confidence": st.sampled_from([None, *ANY]),
        "temperature": st.sampled_from([0.0, 0.1, 1.0]),
        "at_least_one": st.sampled_from([None, True, False]),
    }
)
STEADY = {"derandomize": True, "deadline": None, "database": None}


@pytest.mark.usefixtures("as_a_user_has_it")  # beartype draws from `random`, which Hypothesis forbids
@pytest.mark.parametrize("number", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_any_parts_are_refused_in_a_sentence_or_keep_the_promises_of_the_loop(number: int) -> None:
    made = []

    @settings(max_examples=number, **STEADY)
    @given(PARTS)
    def kept(parts: dict[str, Any]) -> None:
        try:
            decoder = Decoder(**parts)
        except ValueError as error:
            assert ";" in str(error) and "\n" not in str(error)
            return
        made.append(decoder)
        spec = NOISY if decoder.needs_noise else SPEC
        prompts, model = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [10]], HashModel(spec=spec)
        options = {"gen_len": 8, "block_len": 4, "decoder": decoder, "cache": NO_CACHE, "stop": Never(), "seed": 7}
        rows = decode(model, prompts, **options)
        assert [decode(model, [prompt], **options)[0] for prompt in prompts] == rows
        for row in rows:
            assert row.stopped_by == "length" and row.nfe >= 1 and min(row.committed_at) >= 0
            assert SPEC.mask_id not in row.token_ids

    kept()
    assert len(made) > number // 10


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_defaults_of_a_decoder_are_those_of_its_yaml(file) -> None:
    built = instantiate(OmegaConf.load(file), _convert_="all")
    parts = {name: getattr(built, name) for name in ("transforms", "rescore", "soft", "temperature")}
    if file.stem == "left":  # an order by another confidence is what it is
        parts["confidence"] = "left_to_right"
    assert Decoder(built.rule, revise=built.revise, **parts) == built
    if built.rule.revision is not None:
        assert Decoder(built.rule, **parts) == built


@pytest.mark.parametrize("rule", [d.EntropyThreshold, d.EntropyBound, d.Contention])
def test_a_rule_gets_the_confidence_that_it_reads(rule: type[CommitRule]) -> None:
    assert Decoder(rule()) == Decoder(rule(), confidence="entropy")
    with pytest.raises(ValueError, match=r"confidence='prob' of Decoder, but \w+ reads entropy; give entropy"):
        Decoder(rule(), confidence="prob")
    assert not Decoder(rule()).step(example_view(Decoder(rule()), 0, 12), [{}]).write.all()


@dataclass(frozen=True)
class Gap(CommitRule):
    scale: ClassVar = ("margin",)

    def __call__(self, view, candidates, memory):
        return candidates.confidence >= 0.3


def test_a_rule_of_a_users_own_declares_its_confidence() -> None:
    assert Decoder(Gap()).confidence == "margin" and Decoder(d.FirstAlone(Gap())).confidence == "margin"
    with pytest.raises(ValueError, match="give margin"):
        Decoder(Gap(), confidence="entropy")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Decoder(d.Factor(), confidence="entropy"), "Factor reads prob or margin; give prob or margin"),
        (lambda: Decoder(Threshold(), confidence="random"), "Threshold reads prob or margin"),
        (lambda: Decoder(d.Prophet(base=d.EntropyBound()), confidence="prob"), "EntropyBound reads entropy"),
        (lambda: Decoder(Threshold(), revise=Renoise()), "no confidence in common.*Renoise reads entropy"),
        (lambda: Decoder(FixedK(1), revise=NarrowOut(d.Wino())), r"NarrowOut is the revision of Wino\(.*; use Decoder"),
        (lambda: Decoder(d.LoopMdm(32), revise=LoopRemask(d.LoopMdm(16))), "LoopMdm has a revision of its own"),
        (lambda: Decoder(d.ReMdm(kind="cap"), revise=ReMdmRemask(d.ReMdm(kind="conf"))), "leave revise out"),
        (lambda: Decoder(d.Wino(), revise=d.TokenEdit()), "Wino has a revision of its own"),
        (lambda: Decoder(Threshold(), revise=d.SlowFast()), r"SlowFast decides alone.*use FixedK\('all'\)"),
        (lambda: Decoder(FixedK(1), revise=d.InDel()), "InDel decides alone"),
        (lambda: Decoder(Threshold(), rescore=(d.OrderNoise(),)), "OrderNoise only orders positions"),
        (lambda: Decoder(Threshold(), rescore=(d.PositionPrior(),)), "use a rule that counts, such as FixedK"),
        (lambda: Decoder(FixedK(1), confidence="entropy", rescore=(d.EosLast(),)), "EosLast reads prob"),
        (lambda: Decoder(FixedK(1), confidence="entropy", rescore=(d.DensityPrior(),)), "DensityPrior reads prob or"),
        (lambda: Decoder(Threshold(), soft=d.SelfDoubt()), r"revise=TokenEdit\(0.0\)"),
        (lambda: Decoder(Threshold(), at_least_one=False), "Threshold has no empty steps"),
        (lambda: Decoder(d.Dilated(keep=0.3), confidence="entropy"), "keep=0.3 of Dilated is of prob or margin"),
    ],
)
def test_parts_that_do_not_go_together_are_refused(make: Callable[[], Decoder], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_soft_step_takes_any_revision_that_declares_what_it_needs() -> None:
    class Own(d.Revise):
        edits = True

        def __call__(self, view: Any, candidates: Any, write: Any, memory: Any) -> Any: ...

    own = Own()
    assert Decoder(Threshold(), revise=own, soft=d.SelfDoubt()).revise is own
    with pytest.raises(ValueError, match=r"revise=TokenEdit\(0.0\)"):
        Decoder(Threshold(), revise=d.ConfidenceDrop(), soft=d.SelfDoubt())


def test_a_schedule_declares_its_empty_steps() -> None:
    for rule in (d.MaskGit(), d.DreamSchedule(), d.DreamOrigin(), d.ReMdm(), d.LoopMdm(), d.FirstAlone(d.MaskGit())):
        assert Decoder(rule) == Decoder(rule, at_least_one=False) != Decoder(rule, at_least_one=True)
    assert not Decoder(d.EntropyBound(), revise=Renoise()).at_least_one
    assert Decoder(FixedK("all"), revise=d.RunningConfidence()).at_least_one  # its schedule is the revision's


def test_dilated_steps_keep_their_columns_whatever_their_confidence() -> None:
    by_prob, by_entropy = (
        Decoder(d.Dilated(), confidence=kind).step(example_view(Decoder(d.Dilated()), 1, 12), [{}])
        for kind in ("prob", "entropy")
    )
    assert by_entropy.write.equal(by_prob.write) and by_prob.write.sum() > 3


@pytest.mark.usefixtures("as_a_user_has_it")
def test_dreams_temperature_tempers_its_confidences_before_its_filters() -> None:
    """As in the authors' `sample_tokens`: divide, keep the nucleus, draw, and take the confidence of what is left."""
    kinds = (("prob", "DreamSchedule"), ("margin", "DreamSchedule"), ("entropy", "DreamSchedule"), ("prob", "Dimple"))
    for kind, rule in kinds:
        filters = (d.TopP(0.9), d.TopK(5))
        ours = Decoder(getattr(d, rule)(steps=3), filters, temperature=0.3, confidence=kind)
        apart = replace(ours, transforms=(d.Temperature(0.3), *filters), temperature=1.0)
        for step in range(3):
            view = example_view(ours, step, 12)
            one, other = (decoder.step(view, decoder.init(None)) for decoder in (ours, apart))  # type: ignore[arg-type]
            assert one.write.equal(other.write) and one.tokens.equal(other.tokens)
    view = example_view(ours, 0, 12)
    tempered = Decoder(d.DreamSchedule(), temperature=0.3).propose(view, view.logits).confidence
    log_prob = (view.logits.values / 0.3).log_softmax(-1).clamp(min=-1e4)
    torch.testing.assert_close(tempered.float(), (log_prob.exp() * log_prob).sum(-1))
    plain = Decoder(FixedK(1), temperature=0.3, confidence="entropy").propose(view, view.logits).confidence
    torch.testing.assert_close(plain, -view.logits.entropy)  # LLaDA's: the noise is in the draw alone


@pytest.mark.usefixtures("as_a_user_has_it")
def test_what_is_no_model_no_cache_or_no_device_is_refused() -> None:
    def refused(message: str, call: Callable[..., Any] = decode, model: Any = None, **wrong: Any) -> None:
        parts = {"gen_len": 4, "block_len": 4, "decoder": Decoder(FixedK(1)), "cache": NO_CACHE, "stop": Never()}
        with pytest.raises(ValueError, match=message):
            call(model or HashModel(), [[1, 2]], **parts | wrong)

    refused("cache=<class .*WindowCache'> of decode; give an object", cache=WindowCache)
    refused("cache=<class .*WindowCache'> of decode", d.generate, make_model("full"), cache=WindowCache)
    for call in (decode, d.generate):
        refused(r"model='tiny' is a name; give the model: dllm.load\('tiny'\)", call, "tiny")
        refused("is no diffusion model; give one", call, type(make_model("full")))
        refused("is no diffusion model; give one", call, 3)
    with pytest.raises(ValueError, match="model=None is no diffusion model"):
        d.generate(None, [[1]])  # type: ignore[arg-type]
    for spread in (d.ONE_WINDOW, d.Ahead(2), d.Lookahead(2), d.RunningSet()):
        refused("on_step=3 of .*; give a function or null", on_step=3, spread=spread)
        refused("device='nope' does not exist", device="nope", spread=spread)
        refused("device='meta', but the model is on 'cpu'", model=make_model("full"), device="meta", spread=spread)
    refused("spread='x' of decode; give an object whose class derives from decoders.Spread", spread="x")
    with pytest.raises(ValueError, match="states='x' of Ahead"):
        d.Ahead("x")
    with pytest.raises(ValueError, match="give either gen_len or templates, not both"):
        d.generate(make_model("full"), [[1]], gen_len=4, templates=[[2]])


@pytest.mark.parametrize("call", [d.generate, d.generate_verified, decode, d.decode_queue])
def test_names_of_arguments_that_are_not_there_are_told(call: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=rf"{call.__name__} has no argument 'gen_lenght'; did you mean 'gen_len'\?"):
        call(make_model("full"), [[1]], gen_lenght=8)


def test_the_names_of_the_command_line_are_understood_in_python() -> None:
    model = make_model("full")
    same = d.generate(model, [[1, 2]], gen_len=8, block_len=4)
    assert d.generate(model, [[1, 2]], gen_length=8, block_length=4) == same and len(same[0].committed_at) == 8
    with pytest.raises(TypeError, match="gen_len and gen_length of generate are the same; give one of them"):
        d.generate(model, [[1]], gen_len=8, gen_length=8)


def test_numbers_beyond_use_cost_nothing() -> None:
    parts = {"gen_len": 4, "block_len": 4, "cache": NO_CACHE, "stop": Never()}
    model, one = make_model("full"), Decoder(FixedK(1))
    few, many = (decode(model, [[1, 2]], spread=d.Ahead(n), decoder=one, **parts) for n in (4, 10**6))
    assert few == many
    few, many = (decode(model, [[1, 2]], spread=d.Lookahead(n), decoder=one, **parts) for n in (4, 10**6))
    assert few == many
    all_, huge = (Decoder(Threshold(0.6), transforms=(d.Credit(slots=n),)) for n in (None, 10**6))
    wide = HashModel()
    assert decode(wide, [[1, 2]], decoder=all_, **parts) == decode(wide, [[1, 2]], decoder=huge, **parts)
