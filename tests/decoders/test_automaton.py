"""Automata over tokens: they accept what the regex matches, whatever the vocabulary."""

import json
import re

import jsonschema
import pytest
from hypothesis import given, settings, strategies as st

import dllm
from decoders.constraints.automaton import TokenAutomaton, Vocabulary, automaton_of, excludes_nothing, vocabulary_of
from decoders.constraints.patterns import Choice, JsonSchema, Regex, constraint_of

pytest.importorskip("outlines_core")
LETTERS = ["a", "b", "ab", "ba", "abb", '"', "é", "\n"]
SMALL = Vocabulary(10, {i + 1: text.encode() for i, text in enumerate(LETTERS)}, (0,))  # id 9 spells nothing

PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "ab", ".", "[ab]", "é"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda two: f"({two[0]}|{two[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}"])).map(lambda two: f"({two[0]}){two[1]}"),
    ),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None)
@given(PATTERNS, st.lists(st.lists(st.integers(1, 8), max_size=6), max_size=12))
def test_an_automaton_accepts_what_its_regex_matches(pattern, texts):
    automaton = TokenAutomaton.of_regex(pattern, SMALL)
    assert automaton is not None
    shortest = min((len(t) for t in texts if matches(pattern, t)), default=None)
    assert shortest is None or automaton.least_tokens <= shortest
    for tokens in texts:
        assert automaton.accepts(tokens) == matches(pattern, tokens)
        assert automaton.accepts([*tokens, 0, 0]) == matches(pattern, tokens)
        assert not automaton.accepts([*tokens, 0, 1]) and not automaton.accepts([*tokens, 9])


def matches(pattern: str, tokens: list[int]) -> bool:
    return re.fullmatch(pattern, "".join(LETTERS[token - 1] for token in tokens), re.DOTALL) is not None


def test_tokens_that_are_parts_of_a_character_spell_it():
    halves = Vocabulary(4, {1: b"\xc3", 2: b"\xa9", 3: b"a"}, (0,))
    automaton = TokenAutomaton.of_regex("é+", halves)
    assert automaton is not None and automaton.least_tokens == 2
    assert automaton.accepts([1, 2, 1, 2]) and not automaton.accepts([1]) and not automaton.accepts([1, 1])


@pytest.mark.parametrize("pattern", ["[^\\x00-\\x{10FFFF}]", "x", "a{3}é[xy]"])
def test_what_no_token_spells_has_no_automaton(pattern):
    assert TokenAutomaton.of_regex(pattern, SMALL) is None


@pytest.mark.parametrize("pattern", ["(", "(?=a)", r"(a)\1", "[z-a]", "a{2,1}"])
def test_what_is_no_regex_is_refused(pattern):
    with pytest.raises(ValueError, match="give one in Rust's syntax"):
        TokenAutomaton.of_regex(pattern, SMALL)


def test_a_constraint_that_every_text_matches_excludes_nothing():
    assert all(excludes_nothing(Regex(pattern)) for pattern in (".*", "(?s).*", "(.|\n)*", ".*.*", "(a|.)*"))
    assert not any(excludes_nothing(Regex(pattern)) for pattern in ("a*", ".+", "[^a]*", "[\\x00-\\x7f]*"))


def test_choices_are_taken_literally():
    choice = Choice(["a.b", "x|y", "(c)", "#&~- \n[]{}^$\\"])
    assert all(re.fullmatch(choice.pattern, text) for text in choice.choice)
    assert not re.fullmatch(choice.pattern, "aXb")
    assert choice == Choice(("a.b", "x|y", "(c)", "#&~- \n[]{}^$\\"))


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string", "maxLength": 5}, "b": {"type": "array", "items": {"type": "integer"}}},
    "required": ["a", "b"],
}


def test_a_schema_is_a_regex_of_its_json():
    pattern = JsonSchema(SCHEMA).pattern
    for value in ({"a": "xy", "b": []}, {"a": "", "b": [1, -20]}):
        jsonschema.validate(value, SCHEMA)
        assert re.fullmatch(pattern, json.dumps(value))
    for value in ({"a": "too long", "b": []}, {"a": "x"}, {"b": [], "a": "x"}):
        assert not re.fullmatch(pattern, json.dumps(value))
    assert JsonSchema(SCHEMA) == JsonSchema(json.dumps(SCHEMA)) and hash(JsonSchema(SCHEMA))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (SCHEMA, {"a": "xy", "b": [1, -20]}),
        ({"type": "array"}, [1, [], {"a, :b": [2.5, None]}, {"c": "\ue000"}]),
        ({"type": "object", "properties": {"\ue000 ,": {"enum": ["a,b: c", 1]}, "d": {}}}, {"\ue000 ,": "a,b: c"}),
        ({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}, {"a": None, "b": None}),
    ],
)
def test_a_schema_wants_the_layout_of_json_dumps_or_a_given_one(schema, value):
    own, free = JsonSchema(schema).pattern, JsonSchema(schema, whitespace="[ ]?").pattern
    texts = [json.dumps(value, ensure_ascii=False, separators=between) for between in ((", ", ": "), (",", ":"))]
    assert re.fullmatch(own, texts[0]) and not re.fullmatch(own, texts[1])
    assert all(re.fullmatch(free, text) for text in texts)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "integer", "minimum": 3}, "schema.minimum"),
        ({"type": "array", "items": {"not": {}}}, "schema.items.not"),
        ({"type": "array", "items": {"type": "null"}, "uniqueItems": True}, "schema.uniqueItems"),
        ({"properties": {"x": {"type": "number", "multipleOf": 2}}}, "schema.properties.x.multipleOf"),
        ({"allOf": [{"type": "null"}, {"type": "null"}]}, "schema.allOf"),
        ({"type": "string", "pattern": "a+", "maxLength": 2}, "schema.pattern"),
        (True, "schema"),
    ],
)
def test_what_a_schema_cannot_keep_is_refused_by_name(schema, named):
    with pytest.raises(ValueError, match=f"^{named} of JsonSchema" if schema is not True else "schema"):
        JsonSchema(json.dumps(schema))


@pytest.mark.parametrize(
    "schema", [{"type": "banana"}, {"type": "string", "format": "ipv4"}, {"$ref": "#"}, {"properties": 3}]
)
def test_what_the_library_does_not_know_is_refused(schema):
    with pytest.raises(ValueError, match="of JsonSchema"):
        _ = JsonSchema(schema).pattern


def test_a_mapping_describes_a_constraint(tmp_path):
    file = tmp_path / "s.json"
    file.write_text(json.dumps(SCHEMA))
    assert constraint_of({"json_schema": str(file)}) == constraint_of({"json_schema": SCHEMA}) == JsonSchema(SCHEMA)
    assert constraint_of({"regex": "a"}) == Regex("a") and constraint_of({"choice": ["a"]}) == Choice(("a",))
    for wrong in ({}, {"regex": "a", "choice": ["a"]}, {"regx": "a"}, {"json_schema": "nowhere.json"}, {"choice": []}):
        with pytest.raises(ValueError):
            constraint_of(wrong)


def test_an_automaton_is_made_once_and_kept(tmp_path, monkeypatch):
    automaton_of.cache_clear()
    first = automaton_of(Regex("ab+"), SMALL, tmp_path)
    assert automaton_of(Regex("ab+"), SMALL, tmp_path) is first
    (file,) = tmp_path.rglob("*.safetensors")
    automaton_of.cache_clear()
    monkeypatch.setattr(TokenAutomaton, "of_regex", None)  # it is read
    again = automaton_of(Regex("ab+"), SMALL, tmp_path)
    assert again is not None and again.accepts([3, 2]) and not again.accepts([1])
    monkeypatch.undo()
    automaton_of.cache_clear()
    file.write_bytes(b"damaged")
    assert automaton_of(Regex("ab+"), SMALL, tmp_path).accepts([3, 2])


def test_the_vocabulary_of_a_model_spells_what_it_decodes():
    for model in (dllm.load("tiny"), dllm.load_causal("tiny-ar")):
        vocabulary = vocabulary_of(model)
        text = '["Ada Bach", "Ben Cole"]'
        ids = [token for token in model.encode(text) if token in vocabulary.tokens]
        assert b"".join(vocabulary.tokens[token] for token in ids).decode() == text == model.decode(ids)
        assert not set(vocabulary.eos_ids) & set(vocabulary.tokens)
