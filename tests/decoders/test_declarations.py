"""What parts declare reaches the loop from wherever they stand, also from inside other parts; what is no decoder, or no
part for its place, is refused with what to do about it."""

import forked
import pytest
from jaxtyping import Int
from torch import Tensor

from decoders import (
    NO_CACHE,
    BlockEos,
    Credit,
    Decoder,
    Eotp,
    FixedK,
    Learn2PD,
    MaskGit,
    Never,
    Oracle,
    Prophet,
    RunningConfidence,
    StopRule,
    StrictEos,
    decode,
)
from decoders.state import DecodeState
from decoders.testing import HashModel


def run(decoder: Decoder, gen_len: int = 8) -> list:
    model = HashModel()
    return decode(model, [[1, 2, 3]], gen_len=gen_len, block_len=8, decoder=decoder, cache=NO_CACHE, stop=Never())


def test_a_schedule_inside_a_part_gets_its_steps() -> None:
    (row,) = run(Decoder(FixedK("all"), revise=RunningConfidence(MaskGit(400, "linear"))))
    assert row.stopped_by == "length" and row.num_tokens == 8 and row.nfe <= 400


def test_weights_inside_a_part_are_told_and_refuse_wide_windows() -> None:
    alone, inside = Decoder(Learn2PD()), Decoder(Prophet(base=Learn2PD()))
    assert inside.identity == alone.identity != ""
    for decoder in (alone, inside):
        decoder.check_window(32)
        with pytest.raises(ValueError, match=r"block_length=64, but .* blocks of 32"):
            decoder.check_window(64)


def test_a_rule_inside_a_part_gets_its_reference() -> None:
    (plain,), (inside,) = run(Decoder(Oracle())), run(Decoder(Prophet((99.0, 99.0, 99.0), base=Oracle())))
    assert inside == plain


REFUSED = """
from decoders import *
from decoders.testing import HashModel, check_decoder

def sentence(call, *arguments, **options):
    try:
        call(*arguments, **options)
    except ValueError as error:
        print(error)

options = dict(gen_len=8, block_len=8, cache=NO_CACHE, stop=Never())
for wrong in (Threshold(0.9), "threshold", Credit(), 0.9):
    sentence(check_decoder, wrong)
sentence(decode, HashModel(), [[1]], decoder=Threshold(0.9), **options)
sentence(decode, HashModel(), [[1]], decoder="threshold", **options)
sentence(Decoder, "threshold")
sentence(Decoder, Credit())
sentence(Decoder, Threshold(), transforms=[Threshold()])
sentence(decode, HashModel(), [[1]], decoder=Decoder(Threshold()), **options | dict(stop="never"))
"""


class Writing(StopRule):
    """Forgets what stands behind an EOS, in the state that it is shown."""

    def __call__(self, state: DecodeState) -> Int[Tensor, " B"]:
        behind = state.spec.is_eos(state.canvas).cumsum(1) > 0
        state.canvas.masked_fill_(behind, state.spec.mask_id)
        return state.end


def test_a_stop_rule_that_writes_to_the_state_is_refused_before_a_forward() -> None:
    parts = {"gen_len": 8, "block_len": 8, "decoder": Decoder(FixedK(1)), "cache": NO_CACHE}
    with pytest.raises(ValueError, match=r"stop: Writing writes to state\.canvas; return where rows end instead"):
        decode(HashModel(), [[1]], stop=Writing(), **parts)
    for stop in (Never(), StrictEos(), BlockEos(), *(Eotp(scope=scope) for scope in ("committed", "window", "query"))):
        decode(HashModel(), [[1]], stop=stop, **parts)


def test_what_is_no_decoder_is_refused_in_one_sentence() -> None:
    """In a process of its own, without the type checks of the tests."""
    done = forked.run("-c", REFUSED)
    assert done.returncode == 0, done.stderr
    shown = "Threshold(tau=0.9, least=1)"
    rule = f"{shown} is a rule, not a decoder; wrap it: decoders.Decoder({shown})"
    rest = "not a decoder; give decoders.Decoder(rule), such as decoders.Decoder(decoders.Threshold())"
    credit = repr(Credit())
    assert done.stdout.splitlines() == [
        rule,
        f"'threshold' is a name, {rest}",
        f"{credit} is a part, {rest}",
        f"0.9 is something else, {rest}",
        rule,
        f"'threshold' is a name, {rest}",
        "rule='threshold' of Decoder; give an object whose class derives from decoders.CommitRule",
        f"rule={credit[:80]}... of Decoder; give an object whose class derives from decoders.CommitRule",
        f"transforms[0]={shown} of Decoder; give an object whose class derives from decoders.LogitTransform",
        "stop: 'never' is no StopRule; give an object whose class derives from decoders.StopRule",
    ]
