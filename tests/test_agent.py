"""The recall loop: what a reply asks for, what a step's prompt shows, where a walk goes, and that its trace replays."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from datetime import datetime
from itertools import pairwise

import pytest
from conftest import picture, small_memory
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from delivermem import agent, controls, judges
from delivermem.agent import HOME, STEPS, Action, Step, Walk, parse, replayed, step_prompt
from delivermem.benchmarks.storefront import Storefront
from delivermem.delivery import IMAGES_LAST, IN_ANY_ORDER, PREAMBLES, Decisions, deliver
from delivermem.pictures import PictureError
from delivermem.records import Answer, Memory, Question, Record, Slot

SHADES = {"a0n": (200, 30, 30), "b1o": (20, 140, 20), "c2p": (30, 30, 220)}
LINKS = ("/category/lamp", "/category/sofa")


def _shop(photo=None):
    """Home, two categories, one collection each; a0n and b1o are lamps, c2p is a sofa."""
    rows = [("lamp", "a0n", "red star"), ("lamp", "b1o", "blue key"), ("sofa", "c2p", "orange star")]
    catalogue = dict(
        categories=[dict(id=f"cat-{n}", slug=n, sortOrder=i) for i, n in enumerate(("lamp", "sofa"))],
        collections=[
            dict(id=f"col-{n}", slug=f"{n}-a", categoryId=f"cat-{n}", displayOrder=i)
            for i, n in enumerate(("lamp", "sofa"))
        ],
        variants=[
            dict(
                id=code, collectionId=f"col-{kind}", urlHash=code, primaryImage=code, _cue_color=cue.split()[0],
                _cue_object=cue.split()[1],
            )
            for kind, code, cue in rows
        ],
    )  # fmt: skip
    return Storefront(catalogue, photo or (lambda path: Image.new("RGB", (64, 64), SHADES[path])))


def _delivered(decisions=Decisions(), memory=None):  # noqa: B008
    """Two records with pictures and one without, as the shop's benchmarks deliver them."""
    memory = memory or small_memory()
    return deliver([memory[i] for i in ("r3", "r2", "r1")], "unused", decisions, layout="text-first")


def _walk(cue="red star", at=None):
    return Walk(cue, at or (lambda url: _delivered()))


def _url(prompt):
    return prompt.question.split("URL: ")[1].split("\n")[0]


class Scripted:
    """A backbone that replies by a rule from prompt to text or answer, the last prompt of a call first."""

    name, identity = "scripted", dict(model="scripted")

    def __init__(self, rule):
        self.rule, self.asked, self.calls = rule, [], 0

    def answer(self, prompts):
        self.calls += 1
        prompts = list(prompts)
        for i in reversed(range(len(prompts))):
            self.asked.append(prompts[i])
            said = self.rule(prompts[i])
            yield i, said if isinstance(said, Answer) else _answer(said)


def _answer(text):
    return Answer(text, text_tokens=10, image_tokens=4, images=2, seconds=0.25)


def _script(*replies):
    """A backbone for one walk: these replies in turn, the last one again and again."""
    left = [*replies]
    return Scripted(lambda prompt: left.pop(0) if len(left) > 1 else left[0])


def _go(*replies, walk=None, shop=None):
    """One walk to its end by these actions; a reply that is an Answer is given as it is."""
    said = [reply if isinstance(reply, Answer) else f"Thought: x.\nAction: {reply}" for reply in replies]
    (walked,) = agent.walk([walk or _walk()], _script(*said), shop or _shop())
    return walked


# -- what a reply asks for ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "action"),
    [
        ("navigate(/product/a0n)", Action("navigate", "/product/a0n")),
        ("navigate('/product/a0n')", Action("navigate", "/product/a0n")),
        ('navigate( "http://shop.example/category/lamp" )', Action("navigate", "http://shop.example/category/lamp")),
        ("navigate(/)", Action("navigate", "/")),
        ("click_index(3)", Action("click_index", "3")),
        ("click_index( 12 )", Action("click_index", "12")),
        ("add_to_wishlist", Action("add_to_wishlist")),
        ("add_to_wishlist()", Action("add_to_wishlist")),
        ("done", Action("done")),
        ("done.", Action("done")),
        ("go to /product/a0n.", Action("navigate", "/product/a0n")),
        ("/product/a0n", Action("navigate", "/product/a0n")),
        # of several in one line: wishlist, click, navigate, a product's path, done
        ("done, then navigate(/x), click_index(2), add_to_wishlist", Action("add_to_wishlist")),
        ("done, then navigate(/product/a0n) or click_index(2)", Action("click_index", "2")),
        ("done with /product/b1o, navigate(/product/a0n)", Action("navigate", "/product/a0n")),
        ("done at /product/b1o", Action("navigate", "/product/b1o")),
        # nothing that can be read
        ("", Action("")),
        ("click_index(first)", Action("")),
        ("click_index(-1)", Action("")),
        ("navigate()", Action("")),
        ("undone", Action("")),
        ("buy it", Action("")),
    ],
)  # fmt: skip
def test_an_action_line_is_read_by_the_order_of_precedence(line, action):
    for said in (
        f"Action: {line}",
        f"Thought: done, so add_to_wishlist?\n**Action:** {line}",
        f"  ACTION : {line}\nok",
    ):
        assert parse(said) == action, said


def test_the_last_action_line_counts_and_text_outside_of_it_does_not():
    said = "Action: add_to_wishlist\nThought: no.\nAction: navigate(/product/b1o)\nadd_to_wishlist /product/a0n done"
    assert parse(said) == Action("navigate", "/product/b1o")
    assert parse("Action: done\nAction: I can't say") == Action("")
    assert parse("Action: done\nAction:") == Action("")
    for said in ("add_to_wishlist", "Thought: navigate(/product/a0n)", "My reaction: done", "", "\n"):
        assert parse(said) == Action("")


WORDS = [
    "Action:", "action", ":", "\n", " ", "\r\n", "navigate(", "click_index(", "add_to_wishlist", "done", "/product/",
    "a0n", "7", "٣", "²", ")", "(", "'", '"', "**", "Thought:", "\ud800", "\x00", "9" * 30,
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=14).map("".join) | st.text(max_size=60))
@example("Action: click_index(²)")
def test_any_reply_is_an_action_or_none_and_never_an_error(reply):
    action = parse(reply)
    assert (action.kind in ("navigate", "click_index")) == bool(action.argument)
    assert action.kind != "click_index" or int(action.argument) >= 0
    assert str(action).startswith(action.kind)
    assert parse(f"{reply}\nAction: done") == Action("done")


# -- what a step shows ----------------------------------------------------------------------------------------


def test_a_steps_blocks_stand_in_the_benchmarks_order():
    page = Image.new("RGB", (64, 64), SHADES["a0n"])
    prompt = step_prompt(
        _delivered(), "orange star", step=3, url="/product/a0n", page=page,
        replies=["Thought: M1.\nAction: navigate(/x)", "Thought: M2.\nAction: navigate(/product/a0n)"],
    )  # fmt: skip
    blocks = (
        "Step 3/8.\n"
        "[Subtask] Go to the product that shows an orange star.\n"
        "[Conversation so far]\nuser: Earlier I saw a product with an orange star. Take me back to it.\n"
        "assistant: Thought: M1.\nAction: navigate(/x)\n"
        "assistant: Thought: M2.\nAction: navigate(/product/a0n)\n"
        "[Memory context retrieved this step] 3 items\n"
        f"{PREAMBLES['stamp']}{IN_ANY_ORDER}"
        "M1 [2024/05/03 (Fri) 10:00] My garden today:  is it not green?\n"
        "(2) [2024/05/02 (Thu) 10:00] Nice weather in the harbor town.\n"
        "M2 [2024/05/01 (Wed) 10:00] A photo of the harbor. \n"
        "[Current page]\nURL: /product/a0n\nTitle: /product/a0n\nDescription: /product/a0n\n"
    )
    assert prompt.text == f"{agent.SYSTEM}\n\n{blocks}<image><image><image>"
    text, *slots = prompt.parts
    assert text == blocks and [(slot.record_id, slot.tag) for slot in slots] == [
        ("", ""), ("r3", "M1"), ("r1", "M2"),
    ]  # fmt: skip
    assert prompt.images[0].tobytes() == page.tobytes()  # the page comes first, and bears no tag
    assert [message["role"] for message in prompt.to_transformers()] == ["system", "user"]


def test_a_step_off_the_product_pages_shows_memory_alone_and_the_first_step_no_reply():
    prompt = step_prompt(_delivered(), "red star", step=1, url="/", page=None)
    assert [slot.record_id for slot in prompt.slots] == ["r3", "r1"] and "assistant:" not in prompt.text
    assert prompt.text.startswith(
        f"{agent.SYSTEM}\n\nStep 1/8.\n[Subtask] Go to the product that shows a red star."
    )
    assert "URL: /\n" in prompt.text


@pytest.mark.parametrize(
    "decisions", [Decisions(), Decisions(identity="none"), Decisions("text", "none", "none")]
)
def test_a_step_changes_nothing_of_what_was_delivered(decisions):
    delivered = _delivered(decisions)
    prompt = step_prompt(delivered, "red star", step=1, url="/", page=None)
    assert prompt.items == delivered.items and prompt.decisions == delivered.decisions
    assert [slot.image for slot in prompt.slots] == delivered.images
    assert prompt.preamble.endswith(delivered.preamble)
    assert "unused" not in prompt.text  # the question as it was put to `deliver`


def test_what_pairs_stamped_pictures_with_items_is_their_tag_alone_and_else_their_order():
    memory = small_memory()
    question = Question("q", "?", "a0n", "recall", memory)
    stamped, bare = (_delivered(decisions, memory) for decisions in (Decisions(), Decisions(identity="none")))
    constant = controls.apply(stamped, "constant-tag", question=question)
    said = [step_prompt(p, "red star", step=1, url="/", page=None).text for p in (stamped, bare, constant)]
    assert [IN_ANY_ORDER in text for text in said] == [True, False, False]
    assert [IMAGES_LAST in text for text in said] == [False, True, True] and said[1] == said[2]


def test_a_controls_order_of_pictures_is_kept_behind_the_page():
    memory = small_memory()
    question = Question("q", "?", "a0n", "recall", memory)
    changed = controls.apply(_delivered(memory=memory), "reordered", question=question)
    page = Image.new("RGB", (64, 64))
    prompt = step_prompt(changed, "red star", step=1, url="/product/a0n", page=page)
    assert [slot.record_id for slot in prompt.slots] == ["", "r1", "r3"]
    assert [part.record_id for part in prompt.parts if isinstance(part, Slot)] == ["", "r1", "r3"]


def test_memory_is_asked_with_the_probes_words_and_the_page():
    assert agent.query("Which product shows a red star?", "/category/lamp") == (
        "Which product shows a red star? CURRENT: /category/lamp"
    )


# -- where a walk goes ----------------------------------------------------------------------------------------


def test_a_walk_finds_the_product_and_ends_with_the_wish():
    walk = _go("navigate(/category/lamp)", "click_index(0)", "click_index(1)", "add_to_wishlist")
    assert [(s.url, s.action, s.outcome, s.landed) for s in walk.steps] == [
        ("/", "navigate(/category/lamp)", "opened", "/category/lamp"),
        ("/category/lamp", "click_index(0)", "opened", "/collection/lamp-a"),
        ("/collection/lamp-a", "click_index(1)", "opened", "/product/b1o"),
        ("/product/b1o", "add_to_wishlist", "wishlist", "/product/b1o"),
    ]
    assert (walk.product, walk.url, walk.over) == ("b1o", "/product/b1o", True)
    assert walk.answer == Answer("b1o", "ok", "stop", 40, 16, 8, 1.0)
    assert walk.steps[0].delivered == ["r3", "r2", "r1"] and walk.steps[0].tags == ["M1", "", "M2"]


@pytest.mark.parametrize(("decisions", "control", "tags"), [
    (Decisions(), "text-tag", ["M1", "", "M2"]),
    (Decisions(), "constant-tag", ["", "", ""]),
    (Decisions(identity="none"), "correct", ["", "", ""]),
])  # fmt: skip
def test_a_trace_says_by_what_name_a_record_could_be_called(decisions, control, tags):
    memory = small_memory()
    question = Question("q", "?", "a0n", "recall", memory)
    shown = controls.apply(_delivered(decisions, memory), control, question=question)
    assert _go("done", walk=_walk(at=lambda url: shown)).steps[0].tags == tags


def test_eight_steps_at_most():
    backbone = Scripted(lambda prompt: "Action: navigate(/category/lamp)")
    (walk,) = agent.walk([_walk()], backbone, _shop())
    assert len(walk.steps) == len(backbone.asked) == STEPS == 8 and walk.over
    assert (walk.answer.text, walk.answer.status, walk.answer.finish) == ("", "ok", "steps")
    assert [prompt.text.split("\n\nStep ")[1][:3] for prompt in backbone.asked] == [
        f"{n}/8" for n in range(1, 9)
    ]


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("navigate(/product/zzz)", "no such page"),
        ("navigate(http://[)", "no such page"),
        ("/product/zzz", "no such page"),
        ("click_index(2)", "no such link"),
        ("click_index(999999)", "no such link"),
        ("look around", "unparsed"),
    ],
)
def test_what_can_not_be_done_ends_nothing_and_changes_nothing(line, outcome):
    walk = _go("navigate(/product/a0n)", "navigate(/)", line, "click_index(1)", "done")
    stuck, after = walk.steps[2:4]
    assert (stuck.url, stuck.outcome, stuck.landed, stuck.status) == ("/", outcome, "/", "ok")
    assert (after.url, after.outcome, after.landed) == ("/", "opened", "/category/sofa")
    assert walk.product == "a0n" and len(walk.steps) == 5


def test_a_click_counts_the_pages_links_from_nought():
    assert [_go(f"click_index({n})", "done").url for n in (0, 1)] == [*LINKS]
    back = _go("navigate(/product/c2p)", "click_index(0)", "done")
    assert back.url == "/collection/sofa-a"


def test_a_page_is_landed_on_by_its_path_whatever_the_url_that_named_it():
    walk = _go("navigate('http://localhost:3000/product/a0n/?x=1')", "done")
    assert walk.steps[0].landed == walk.steps[1].url == "/product/a0n" and walk.answer.text == "a0n"


def test_the_answer_is_the_last_product_page_that_was_opened_wherever_the_walk_ends():
    walk = _go(
        "navigate(/product/a0n)", "navigate(/product/c2p)", "navigate(/)", "navigate(/product/zzz)", "done"
    )
    assert walk.url == "/" and walk.answer == replace(walk.answer, text="c2p", status="ok", finish="stop")
    assert _go("add_to_wishlist").answer.text == "" == _go("done").answer.text


def test_a_product_page_is_shown_while_the_agent_is_on_it():
    backbone = _script("Action: navigate(/product/b1o)", "Action: navigate(/)", "Action: done")
    list(agent.walk([_walk()], backbone, _shop()))
    assert [_url(prompt) for prompt in backbone.asked] == ["/", "/product/b1o", "/"]
    assert [len(prompt.slots) for prompt in backbone.asked] == [2, 3, 2]
    assert backbone.asked[1].images[0].getpixel((0, 0)) == SHADES["b1o"]
    assert (
        "assistant: Action: navigate(/product/b1o)\nassistant: Action: navigate(/)\n"
        in backbone.asked[2].text
    )


def test_memory_is_delivered_anew_at_every_step_for_where_the_agent_is():
    asked, memory = [], small_memory()

    def at(url):
        asked.append(url)
        return deliver([memory["r4" if url.startswith("/product") else "r1"]], "?", layout="text-first")

    walk = _go("navigate(/product/a0n)", "navigate(/category/sofa)", "done", walk=_walk(at=at))
    assert [*dict.fromkeys(asked)] == ["/", "/product/a0n", "/category/sofa"]
    assert [step.delivered for step in walk.steps] == [["r1"], ["r4"], ["r1"]]
    assert len({step.pixels for step in walk.steps}) == 2 and len({step.prompt for step in walk.steps}) == 3


# -- failures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [0, 2])
def test_a_failed_model_fails_the_walk_and_is_not_judged(before):
    opened = ["navigate(/product/a0n)"] * before
    walk = _go(*opened, Answer("", "failed", "error: out of memory"))
    last = walk.steps[-1]
    assert len(walk.steps) == before + 1 and walk.over
    assert (last.status, last.outcome, last.finish, last.action) == (
        "failed",
        "failed",
        "error: out of memory",
        "",
    )
    assert (walk.answer.status, walk.answer.finish) == ("failed", "error: out of memory")
    question = Question("q", "?", "a0n", "recall", Memory("m", ()))
    assert judges.judge(question, walk.answer, _delivered()).state == "unjudged"


def test_one_walks_failure_ends_no_other():
    def rule(prompt):
        broken = "blue key" in prompt.text
        return Answer("", "failed", "error: it broke") if broken else "Action: done"

    ended = list(agent.walk([_walk("blue key"), _walk("red star")], Scripted(rule), _shop()))
    assert {walk.cue: walk.answer.status for walk in ended} == {"blue key": "failed", "red star": "ok"}


def test_a_step_that_the_models_context_can_not_hold_is_not_judged():
    walk = _go("navigate(/product/a0n)", Answer("", "not_applicable", "not run: 3000 tokens"))
    question = Question("q", "?", "b1o", "recall", Memory("m", ()))
    assert (
        len(walk.steps) == 2 and walk.answer.status != "ok" and walk.answer.finish == "not run: 3000 tokens"
    )
    assert judges.judge(question, walk.answer, _delivered()).state == "unjudged"


def _no_photo(path):
    if path == "a0n":
        raise PictureError("picture 'a0n': no file at a0n.png; fetch the benchmark's images")
    return Image.new("RGB", (64, 64), SHADES[path])


def _no_memory(url):
    if url == "/product/a0n":
        raise PictureError("picture 'p9': no file at p9.png; fetch the benchmark's images")
    return _delivered()


@pytest.mark.parametrize(("photo", "at"), [(_no_photo, None), (None, _no_memory)], ids=["page", "memory"])
def test_a_picture_that_can_not_be_read_on_the_way_fails_that_walk_alone(photo, at):
    """As in every other arm: the walk fails, with the reason, and the other walks go on."""
    by_cue = {"blue key": "/product/a0n", "red star": "/product/b1o"}

    def rule(prompt):
        if _url(prompt) != "/":
            return "Action: done"
        return f"Action: navigate({next(page for cue, page in by_cue.items() if cue in prompt.text)})"

    ended = list(agent.walk([_walk(cue, at) for cue in by_cue], Scripted(rule), _shop(photo)))
    found = {walk.cue: walk.answer for walk in ended}
    assert found["red star"].status == "ok" and found["red star"].text == "b1o"
    assert found["blue key"].status == "failed" and "no file at" in found["blue key"].finish


def test_an_arm_that_can_not_be_had_has_no_prompt_and_its_walk_is_refused_in_one_sentence():
    walk = _walk(at=lambda url: None)
    assert walk.prompt(_shop()) is None
    with pytest.raises(ValueError, match="nothing can be delivered at /"):
        walk.next(_shop())


# -- many walks together --------------------------------------------------------------------------------------


def test_equal_prompts_are_asked_once_and_every_walk_keeps_its_own_steps():
    backbone = Scripted(
        lambda prompt: "Action: done" if "1/8" not in prompt.text else "Action: navigate(/product/a0n)"
    )
    walks = [_walk("red star"), _walk("blue key"), _walk("red star"), _walk("red star")]
    ended = list(agent.walk(walks, backbone, _shop()))
    assert len(backbone.asked) == 4 and backbone.calls == 2  # two prompts, in two steps
    assert {id(walk) for walk in ended} == {id(walk) for walk in walks}
    assert all([step.outcome for step in walk.steps] == ["opened", "done"] for walk in walks)
    walks[0].steps[0].reply = "changed"
    assert walks[2].steps[0].reply != "changed"


def test_prompts_that_differ_in_a_pixel_are_asked_apart():
    memory = small_memory()
    other = Memory("m", tuple(
        replace(r, pictures=(picture("p1", "gold"),)) if r.id == "r1" else r for r in memory
    ))  # fmt: skip
    backbone = Scripted(lambda prompt: "Action: done")
    walks = [_walk(at=lambda url, m=m: _delivered(memory=m)) for m in (memory, other)]
    list(agent.walk(walks, backbone, _shop()))
    assert len(backbone.asked) == 2
    assert (
        walks[0].steps[0].prompt == walks[1].steps[0].prompt
        and walks[0].steps[0].pixels != walks[1].steps[0].pixels
    )


def test_a_walk_is_handed_back_as_soon_as_it_is_over():
    """So that a run that is killed keeps what has ended."""
    backbone = Scripted(
        lambda prompt: "Action: done" if "blue key" in prompt.text else "Action: navigate(/category/lamp)"
    )
    ended = agent.walk([_walk("red star"), _walk("blue key")], backbone, _shop())
    assert next(ended).cue == "blue key" and backbone.calls == 1
    assert next(ended).cue == "red star" and backbone.calls == STEPS


def test_nothing_is_asked_where_no_walk_is_under_way():
    backbone = Scripted(lambda prompt: "Action: done")
    assert list(agent.walk([], backbone, _shop())) == [] and not backbone.asked
    over = _go("done")
    assert list(agent.walk([over], backbone, _shop())) == [] and not backbone.asked


# -- traces ---------------------------------------------------------------------------------------------------

REPLIES = (
    "Thought: M1 shows it.\nAction: navigate(/product/a0n)",
    "Action: navigate(/nowhere)",
    "Action: click_index(0)",
    "I don't know.",
    "Action: add_to_wishlist",
)


def _trace():
    (walk,) = agent.walk([_walk()], _script(*REPLIES), _shop())
    return json.loads(json.dumps(walk.trace))


def test_a_trace_holds_every_field_of_every_step_as_json():
    trace = _trace()
    assert [step["outcome"] for step in trace] == ["opened", "no such page", "opened", "unparsed", "wishlist"]
    assert all(set(step) == {f.name for f in fields(Step)} for step in trace)
    assert [step["reply"] for step in trace] == [*REPLIES]
    assert trace[0]["url"] == HOME and all(a["landed"] == b["url"] for a, b in pairwise(trace))


def test_a_kept_trace_replays():
    walk = _walk()
    assert replayed(walk, _trace(), _shop()) == "" and walk.product == "a0n"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "/category/lamp"),
        ("delivered", ["r1", "r2", "r3"]),
        ("tags", ["M2", "", "M1"]),
        ("action", "done"),
        ("outcome", "done"),
        ("landed", "/"),
        ("prompt", "0" * 64),
        ("pixels", "0" * 64),
    ],
)
@pytest.mark.parametrize("number", [1, 2])
def test_a_replay_finds_what_was_changed(field, value, number):
    trace = _trace()
    assert trace[number][field] != value
    trace[number][field] = value
    assert replayed(_walk(), trace, _shop()) == f"step {number + 1}: its {field} would be another now"


@pytest.mark.parametrize(
    ("number", "reply", "says"),
    [
        (0, "Action: navigate(/product/b1o)", "step 1: its action"),
        (
            0,
            "Thought: M2 shows it.\nAction: navigate(/product/a0n)",
            "step 2: its prompt",
        ),  # the words come back
        (2, "Action: click_index(1)", "step 3: its action"),
        (3, "Action: done", "step 4: its action"),
    ],
)
def test_a_replay_finds_another_reply_by_what_it_leads_to(number, reply, says):
    trace = _trace()
    trace[number]["reply"] = reply
    assert replayed(_walk(), trace, _shop()).startswith(says)


def test_a_replay_finds_a_step_too_many_and_one_too_few():
    trace = _trace()
    assert replayed(_walk(), [*trace, trace[-1]], _shop()) == "step 6 is one too many"
    for left in (trace[:-1], []):
        assert replayed(_walk(), left, _shop()) == "the trace ends before the errand does"


def test_a_replay_finds_another_shop_another_memory_and_another_cue():
    other = Image.new("RGB", (64, 64), "white")
    assert replayed(_walk(), _trace(), _shop(lambda path: other)) == "step 2: its pixels would be another now"
    assert replayed(_walk("red key"), _trace(), _shop()).startswith("step 1: its prompt")
    record = Record(
        "r1", "A photo of the harbor. <image>", datetime(2024, 5, 1, 11, 0), pictures=(picture("p1"),)
    )
    memory = Memory("m", tuple(record if r.id == "r1" else r for r in small_memory()))
    assert replayed(_walk(at=lambda url: _delivered(memory=memory)), _trace(), _shop()).startswith(
        "step 1: its prompt"
    )


def test_a_failed_step_replays_as_failed():
    walk = _go("navigate(/product/a0n)", Answer("", "failed", "error: it broke"))
    again = _walk()
    assert replayed(again, walk.trace, _shop()) == "" and again.answer == walk.answer


LINES = st.sampled_from([
    "navigate(/product/a0n)", "navigate(/product/c2p)", "navigate(/category/lamp)", "navigate(/nowhere)", "navigate(/)",
    "click_index(0)", "click_index(1)", "click_index(9)", "done", "add_to_wishlist", "hm",
])  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(LINES, min_size=1, max_size=10))
def test_whatever_is_replied_a_walk_ends_hangs_together_and_replays(lines):
    walk = _go(*lines)
    steps = walk.steps
    assert 1 <= len(steps) <= STEPS and steps[0].url == HOME
    assert all(a.landed == b.url for a, b in pairwise(steps))
    assert not any(step.outcome in ("wishlist", "done", "failed") for step in steps[:-1])
    assert all((step.outcome == "opened") or step.landed == step.url for step in steps)
    products = [
        step.landed.removeprefix("/product/") for step in steps if step.landed.startswith("/product/")
    ]
    assert walk.answer.text == walk.product == (products[-1] if products else "")
    assert walk.answer.status == "ok" and walk.answer.text_tokens == 10 * len(steps)
    assert replayed(_walk(), json.loads(json.dumps(walk.trace)), _shop()) == ""
