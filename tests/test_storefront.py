"""The storefront: every page of a catalogue is a click away, any string is a URL or is not, and nothing else is read."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from delivermem.benchmarks import mini, storefront
from delivermem.benchmarks.storefront import IMAGES, CatalogueError, Storefront
from delivermem.pictures import PictureError

COLOURS = {"lamp/a/00.png": (200, 0, 0), "lamp/a/01.png": (0, 160, 0), "sofa/b/00.png": (0, 0, 220)}


def _catalogue():
    """Two categories, the second first in the shop, and three products; the second category's images are `sofa`."""
    variants = [
        dict(id=f"v{i}", collectionId=above, urlHash=code, primaryImage=IMAGES + path, _cue_object=thing, _cue_color=colour)
        for i, (above, code, path, colour, thing) in enumerate(
            [
                ("col-a", "a0n", "lamp/a/00.png", "red", "star"),
                ("col-a", "b1o", "lamp/a/01.png", "orange", "key"),
                ("col-b", "c2p", "sofa/b/00.png", "blue", "star"),
            ]
        )
    ]  # fmt: skip
    return dict(
        categories=[
            dict(id="cat-a", slug="lamp", sortOrder=1),
            dict(id="cat-b", slug="sofa", sortOrder=0),
        ],
        collections=[
            dict(id="col-a", slug="lamp-a", categoryId="cat-a", displayOrder=0),
            dict(id="col-b", slug="sofa-b", categoryId="cat-b", displayOrder=1),
        ],
        variants=variants,
    )


def _shop(catalogue=None):
    return Storefront(
        catalogue or _catalogue(), lambda path: Image.new("RGB", (8, 8), COLOURS[path.removeprefix(IMAGES)])
    )


def _reached(shop):
    """The pages that clicks lead to from `/`, each link followed as it is shown."""
    seen, left = {"/"}, ["/"]
    while left:
        for link in shop.links(left.pop()):
            assert link in shop, f"{link} is shown and can't be opened"
            assert shop.path(link) == link, f"{link} is shown and opens {shop.path(link)}"
            if link not in seen:
                seen.add(link)
                left.append(link)
    return seen


@pytest.fixture(scope="module")
def stock():
    return mini.products()


@pytest.fixture
def folder(tmp_path):
    """A catalogue file and a folder of images as a checkout has them, and a secret beside the folder."""
    for path, colour in COLOURS.items():
        (tmp_path / "images" / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), colour).save(tmp_path / "images" / path)
    Image.new("RGB", (8, 8), "white").save(tmp_path / "secret.png")
    Image.new("RGB", (8, 8), "white").save(tmp_path / "images-of-others.png")
    (tmp_path / "seed_v2.json").write_text(json.dumps(_catalogue()))
    return tmp_path


def _read(folder, **change):
    """The shop of the folder's file after one product's field was changed."""
    path = folder / "seed_v2.json"
    rows = json.loads(path.read_text())
    rows["variants"][0] |= change
    path.write_text(json.dumps(rows))
    return storefront.read(path, folder / "images")


# -- pages and links ------------------------------------------------------------------------------------------


def test_pages_link_to_those_below_in_the_catalogues_order_and_a_product_to_its_collection():
    shop = _shop()
    assert shop.links("/") == ("/category/sofa", "/category/lamp")  # by sortOrder, not by place in the file
    assert shop.links("/category/lamp") == ("/collection/lamp-a",)
    assert shop.links("/collection/lamp-a") == ("/product/a0n", "/product/b1o")
    assert shop.links("/product/b1o") == ("/collection/lamp-a",)
    assert _reached(shop) == {
        "/", "/category/lamp", "/category/sofa", "/collection/lamp-a", "/collection/sofa-b",
        "/product/a0n", "/product/b1o", "/product/c2p",
    }  # fmt: skip


def test_a_product_page_shows_its_own_picture_and_other_pages_none():
    shop = _shop()
    for code, colour in (("a0n", (200, 0, 0)), ("b1o", (0, 160, 0)), ("c2p", (0, 0, 220))):
        assert shop.product(f"/product/{code}") == code
        assert shop.image(f"https://store.example/product/{code}/").getpixel((0, 0)) == colour
    for url in ("/", "/category/lamp", "/collection/lamp-a", "/product/none", "", "nowhere"):
        assert shop.product(url) == "" and shop.image(url) is None


def test_what_tells_a_product_from_others_is_colour_and_object():
    assert [_shop().cue(code) for code in ("a0n", "b1o", "c2p")] == ["red star", "orange key", "blue star"]


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("/", "/"),
        ("/product/a0n", "/product/a0n"),
        ("/product/a0n/", "/product/a0n"),
        ("/product/a0n//", "/product/a0n"),
        ("  /category/lamp \n", "/category/lamp"),
        ("'/product/a0n'", "/product/a0n"),
        ('"/product/a0n/"', "/product/a0n"),
        ("http://localhost:3000/product/a0n", "/product/a0n"),
        ("https://store.example/collection/lamp-a/?page=2#top", "/collection/lamp-a"),
        ("//store.example/product/a0n", "/product/a0n"),
        ("https://store.example/", "/"),
        ("https://store.example", "/"),
        ("http://localhost:3000", "/"),
    ],
)
def test_a_page_is_known_by_its_path_whatever_the_host_the_slash_and_the_quotes(url, page):
    shop = _shop()
    assert shop.path(url) == page and url in shop
    assert shop.links(url) == shop.links(page)


@pytest.mark.parametrize(
    "url",
    ["", " ", "''", "/product/zzz", "/product/A0N", "/product", "/cart", "http://[", "http://[::1", "a0n", "\x00"],
)  # fmt: skip
def test_what_is_no_page_of_the_shop_is_not_in_it(url):
    assert url not in _shop()


@settings(max_examples=200, deadline=None)
@given(
    st.text(max_size=40)
    | st.lists(
        st.sampled_from(
            ["/", "//", "http:", "[", "]", "@", ":", "?", "#", "'", '"', " ", "..", "%2F", "\x00", "\ud800", "℀",
             "product", "a0n", "category", "lamp", "localhost", ":99999"]
        ),
        max_size=10,
    ).map("".join)
)  # fmt: skip
def test_any_string_is_a_page_or_none_and_never_an_error(url):
    shop = _shop()
    page = shop.path(url)
    assert (url in shop) == (page in shop)
    assert shop.path(page) == page or url not in shop  # asking again for what was found changes nothing
    assert bool(shop.product(url)) == (shop.image(url) is not None) == (url in shop and "/product/" in page)


SLUGS = st.lists(
    st.text(st.sampled_from("ab-/?#. %:'\"é"), min_size=1, max_size=4), min_size=5, max_size=5, unique=True
)


@settings(max_examples=60, deadline=None)
@given(SLUGS)
@example(["lamp/", "lamp", "a", "b", "c"])
@example(["what?", "lamp", "a", "b", "c"])
def test_a_catalogue_is_refused_or_every_page_of_it_can_be_clicked_to(slugs):
    """Whatever its slugs and hashes: a page whose own link opens another, or none, would be lost."""
    rows = _catalogue()
    rows["categories"][0]["slug"], rows["categories"][1]["slug"] = slugs[:2]
    for variant, code in zip(rows["variants"], slugs[2:], strict=True):
        variant["urlHash"] = code
    try:
        shop = _shop(rows)
    except CatalogueError:
        return
    assert len(_reached(shop)) == 8
    assert [shop.product(f"/product/{code}") for code in slugs[2:]] == slugs[2:]


# -- catalogues that can't be read ----------------------------------------------------------------------------


def _without(part, number, field):
    return lambda rows: rows[part][number].pop(field)


BROKEN = [
    (lambda rows: rows.pop("variants"), ["'variants'"]),
    (lambda rows: rows.update(categories={"cat-a": {}}), ["'categories'"]),
    (_without("categories", 1, "slug"), ["categories[1]", "'slug'"]),
    (_without("collections", 0, "displayOrder"), ["collections[0]", "'displayOrder'"]),
    (_without("variants", 2, "_cue_color"), ["variants[2]", "'_cue_color'"]),
    (lambda rows: rows["variants"][1].update(primaryImage=""), ["variants[1]", "'primaryImage'"]),
    (lambda rows: rows["variants"][1].update(urlHash=None), ["variants[1]", "'urlHash'"]),
    (lambda rows: rows["variants"].append(None), ["variants[3]", "'id'"]),
    (lambda rows: rows["variants"].append("v3"), ["variants[3]", "'id'"]),
    (lambda rows: rows["collections"][1].update(categoryId="cat-z"), ["col-b", "categoryId", "cat-z"]),
    (lambda rows: rows["variants"][2].update(collectionId="col-z"), ["v2", "collectionId", "col-z"]),
    (lambda rows: rows["variants"][2].update(urlHash="a0n"), ["/product/a0n"]),
    (lambda rows: rows["categories"][1].update(slug="lamp"), ["/category/lamp"]),
]


@pytest.mark.parametrize(("change", "says"), BROKEN)
def test_a_catalogue_out_of_form_is_refused_in_one_sentence(folder, change, says):
    """Which file, which entry, which field, and after a semicolon what to do."""
    path = folder / "seed_v2.json"
    rows = json.loads(path.read_text())
    change(rows)
    path.write_text(json.dumps(rows))
    with pytest.raises(CatalogueError) as error:
        storefront.read(path, folder / "images")
    said = str(error.value)
    assert said.startswith(f"{path}: ") and all(word in said for word in says), said
    assert "\n" not in said and "; " in said, f"no cure: {said}"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows["categories"][1].update(sortOrder="1"), "sortOrder"),
        (lambda rows: rows["collections"][1].update(displayOrder=[1]), "displayOrder"),
        (lambda rows: rows["categories"][0].update(id=["cat-a"]), "id"),
        (lambda rows: rows["variants"][0].update(primaryImage=7), "primaryImage"),
        (lambda rows: rows["variants"][0].update(collectionId={"id": "col-a"}), "collectionId"),
    ],
)
def test_a_field_of_another_type_is_refused_like_one_that_is_missing(folder, change, says):
    path = folder / "seed_v2.json"
    rows = json.loads(path.read_text())
    change(rows)
    path.write_text(json.dumps(rows))
    with pytest.raises(CatalogueError, match=says):
        storefront.read(path, folder / "images")


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows["categories"].append(dict(id="cat-a", slug="rug", sortOrder=7)),
        lambda rows: rows["collections"].append(
            dict(id="col-a", slug="rug-c", categoryId="cat-b", displayOrder=7)
        ),
    ],
)
def test_a_link_that_two_entries_answer_is_refused(change):
    """Were the later of the two taken in silence, products would move to a page that is not theirs."""
    rows = _catalogue()
    change(rows)
    with pytest.raises(CatalogueError, match=r"(cat|col)-a"):
        _shop(rows)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [("variants", "collectionId", "cat-a"), ("collections", "categoryId", "col-a")],
)
def test_a_link_leads_to_an_entry_of_its_own_kind(part, field, value):
    """A product lies in a collection, a collection in a category: an id of another list is no such entry."""
    rows = _catalogue()
    rows[part][-1][field] = value
    with pytest.raises(CatalogueError, match=field):
        _shop(rows)


@pytest.mark.parametrize(
    "content", [b"{broken", b"", b"[1, 2]", b'"text"', b"\xff\xfe\x00"], ids=["broken", "empty", "list", "text", "bytes"]
)  # fmt: skip
def test_a_file_that_is_no_catalogue_is_refused(tmp_path, content):
    path = tmp_path / "seed_v2.json"
    path.write_bytes(content)
    with pytest.raises(CatalogueError) as error:
        storefront.read(path, tmp_path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)
    with pytest.raises(CatalogueError, match=r"gone\.json"):
        storefront.read(tmp_path / "gone.json", tmp_path)


# -- pictures -------------------------------------------------------------------------------------------------


def test_a_file_and_its_folder_of_images_make_the_shop(folder):
    shop = storefront.read(folder / "seed_v2.json", folder / "images")
    assert len(_reached(shop)) == 8
    assert shop.image("/product/c2p").getpixel((0, 0)) == (0, 0, 220)


@pytest.mark.parametrize(
    "image",
    [
        "/images_v2/../secret.png",
        "/images_v2/lamp/../../secret.png",
        "../secret.png",
        "../images-of-others.png",  # begins with the folder's name and is not in it
        "/etc/hostname",
        "//etc/hostname",
    ],
)
def test_no_picture_outside_the_folder_is_read(folder, image):
    shop = _read(folder, primaryImage=image)
    with pytest.raises(CatalogueError, match="lies outside") as error:
        shop.image("/product/a0n")
    assert image in str(error.value) and "seed_v2.json" in str(error.value)


@pytest.mark.parametrize("image", ["/images_v2/lamp/a/99.png", "/images_v2/", ".", "lamp\x00.png"])
def test_a_picture_that_is_not_there_is_one_sentence(folder, image):
    with pytest.raises(PictureError, match="no file"):
        _read(folder, primaryImage=image).image("/product/a0n")


def test_a_path_that_comes_back_into_the_folder_is_read(folder):
    shop = _read(folder, primaryImage="/images_v2/sofa/../lamp/a/00.png")
    assert shop.image("/product/a0n").getpixel((0, 0)) == (200, 0, 0)


def test_a_folder_given_by_a_relative_path_stays_where_it_was(folder, monkeypatch):
    monkeypatch.chdir(folder)
    shop = storefront.read(folder / "seed_v2.json", folder.relative_to(folder) / "images")
    monkeypatch.chdir("/")
    assert shop.image("/product/a0n").getpixel((0, 0)) == (200, 0, 0)


# -- the embedded shop ----------------------------------------------------------------------------------------


def test_the_embedded_shop_has_one_page_a_product_and_every_page_can_be_reached(stock):
    rows = mini.catalogue(stock)
    shop = Storefront(rows, lambda path: Image.new("RGB", (8, 8)))
    pages = _reached(shop)
    assert {page for page in pages if page.startswith("/product/")} == {product.page for product in stock}
    assert len(pages) == 1 + sum(len(rows[part]) for part in ("categories", "collections", "variants"))
    for product in stock:
        (above,) = shop.links(product.page)
        assert above == f"/collection/{product.category}-tone-{product.tone}"
        assert product.page in shop.links(above) and above in shop.links(f"/category/{product.category}")


def test_the_embedded_shop_tells_products_apart_by_their_cues_and_pictures(stock):
    rows = mini.catalogue(stock)
    shop = Storefront(rows, lambda path: Image.new("RGB", (8, 8)))
    assert all(shop.cue(product.code) == " ".join(product.cue[:2]) for product in stock)
    assert len({shop.cue(product.code) for product in stock}) == len(stock)
    assert len({row["primaryImage"] for row in rows["variants"]}) == len(stock)
    assert all(row["primaryImage"].startswith(IMAGES) for row in rows["variants"])


def test_a_catalogue_written_as_json_and_read_back_is_the_same_shop(stock, tmp_path):
    rows = mini.catalogue(stock[:12])
    (tmp_path / "seed_v2.json").write_text(json.dumps(rows))
    for row, product in zip(rows["variants"], stock, strict=False):
        path = tmp_path / row["primaryImage"].removeprefix(IMAGES)
        path.parent.mkdir(parents=True, exist_ok=True)
        product.photo.save(path)
    shop = storefront.read(tmp_path / "seed_v2.json", tmp_path)
    for product in stock[:12]:
        assert shop.image(product.page).tobytes() == product.photo.tobytes()
        assert shop.cue(product.code) == " ".join(product.cue[:2])
