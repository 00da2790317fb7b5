"""Tasks in a real shop, done by an expert and judged on its database."""

from __future__ import annotations

from random import Random

from turngym.environments.web.expert_view import ExpertView, Move, click
from turngym.environments.web.sites.catalogue import SHOP
from turngym.environments.web.sites.data import Data, Row, read_queries
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import (
    Problem,
    ProblemGenerator,
    Stage,
    choose,
    enter,
    press,
    question,
    script,
)
from turngym.environments.web.sites.program import django_session

ME = "dora"
_CATEGORIES = ("Kitchen", "Garden", "Stationery", "Toys", "Lamps")
_CODES = ("SPRING10", "AGAIN5")
_LISTS = ("Birthday", "Later")
_NEW_LISTS = ("Camping", "For Karl", "Kitchen one day", "Moving house", "Winter")
_TITLES = ("Better than expected", "Would buy again", "Arrived late", "Not for children")
_BODIES = ("I use it every day.", "The colour is different.", "It came with a scratch.")
_PEOPLE = (("Ada", "Holm"), ("Ben", "Carr"), ("Mia", "Stone"), ("Tom", "Reed"))
_STREETS = ("7 Castle Street", "12 Orchard Way", "3 Station Road", "28 Park Lane")
_TOWNS = (("Leeds", "LS1 4AP"), ("Hull", "HU1 2AA"), ("Ripon", "HG4 1QN"))
_MENU = ".btn-secondary"


def _product(data: Data, rng: Random, *, sold_out: bool = False, fresh: bool = True) -> Row:
    """Sample a product that is there, or sold out, and not in the cart yet."""
    in_cart = {row["product"] for row in data.all("basket", user=ME, status="Open")}
    return rng.choice(
        [
            row
            for row in data.all("products")
            if (row["stock"] == 0) == sold_out and not (fresh and row["product"] in in_cart)
        ]
    )


def _cart_row(data: Data, rng: Random) -> Row:
    return rng.choice(data.all("basket", user=ME, status="Open"))


def _put(wanted: Data, product: str, count: int = 1, user: str = ME) -> None:
    wanted.add("basket", user=user, status="Open", product=product, quantity=count)


def _category(row: Row) -> list[Stage]:
    return [press(row["category"], "link")]


def _page(row: Row) -> list[Stage]:
    return [*_category(row), press(row["product"], "link")]


def _in_cart(data: Data, product: str, count: int) -> list[Stage]:
    """Change how many there are of what was just put into the cart."""
    last = len(data.all("basket", user=ME, status="Open"))
    quantity = enter(f"#id_form-{last}-quantity", str(count))
    return [press("View cart"), quantity, press("Update", after=product)]


def _account(entry: str) -> list[Stage]:
    return [press("Account", "link"), press(entry, "link")]


def _menu(after: str) -> Stage:
    """Open the menu beside the first button after a text."""

    def stage(page: ExpertView) -> Move:
        lines = iter(page.elements)
        for one in lines:
            if after in one.name:
                break
        return click(next((one for one in lines if one.mark and _MENU in one.hint), None))

    return stage


def _add(data: Data, rng: Random) -> Problem:
    row = _product(data, rng)
    wanted = data.copy()
    _put(wanted, row["product"])
    goal = f"Put one {row['product']} into the cart."
    do = [*_category(row), press("Add to cart", after=row["product"])]
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _two(data: Data, rng: Random) -> Problem:
    rows = [_product(data, rng), _product(data, rng)]
    if rows[0]["category"] == rows[1]["category"]:
        return _two(data, rng)
    wanted, do = data.copy(), []
    for row in rows:
        _put(wanted, row["product"])
        do += [press("Home", "link"), *_category(row), press("Add to cart", after=row["product"])]
    goal = f"Put one {rows[0]['product']} and one {rows[1]['product']} into the cart."
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _many(data: Data, rng: Random) -> Problem:
    row, count = _product(data, rng), rng.randint(2, 6)
    wanted = data.copy()
    _put(wanted, row["product"], count)
    goal = f"Put {count} pieces of {row['product']} into the cart."
    do = [*_category(row), press("Add to cart", after=row["product"])]
    do += _in_cart(data, row["product"], count)
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _search(data: Data, rng: Random) -> Problem:
    """Find a product by what its description says."""
    row = _product(data, rng)
    words = row["description"].replace(".", "").split()
    colour, place = words[1], words[4]
    if len(data.all("products", description=row["description"])) > 1:
        return _search(data, rng)
    wanted, count = data.copy(), rng.randint(1, 4)
    _put(wanted, row["product"], count)
    goal = f"Put {count} of the one thing that is {colour} and made in {place} into the cart."
    do = [enter("Search", f"{colour} {place}"), press("Search", "button")]
    do += [press("Add to cart", after=row["product"]), *_in_cart(data, row["product"], count)]
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _cheapest(data: Data, rng: Random) -> Problem:
    in_cart = {row["product"] for row in data.all("basket")}
    category = rng.choice(_CATEGORIES)
    rows = [row for row in data.all("products", category=category) if row["stock"] > 0]
    lowest = min(rows, key=lambda row: float(row["price"]))
    if lowest["product"] in in_cart:
        return _cheapest(data, rng)
    wanted, count = data.copy(), rng.randint(1, 9)
    _put(wanted, lowest["product"], count)
    goal = f"Put {count} of the cheapest thing of {category} that is in stock into the cart."
    do = [press(category, "link"), press("Add to cart", after=lowest["product"])]
    do += _in_cart(data, lowest["product"], count)
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _quantity(data: Data, rng: Random) -> Problem:
    rows = data.all("basket", user=ME, status="Open")
    place = rng.randrange(len(rows))
    count = rng.choice([n for n in range(1, 9) if n != rows[place]["quantity"]])
    product = rows[place]["product"]
    wanted = data.copy()
    wanted.one("basket", user=ME, product=product, status="Open").update(quantity=count)
    goal = f"Change the quantity of {product} in the cart to {count}."
    do = [press("View cart"), enter(f"#id_form-{place}-quantity", str(count))]
    return Problem(goal=goal, wanted=wanted, expert=script(*do, press("Update", after=product)))


def _drop(data: Data, rng: Random) -> Problem:
    row = _cart_row(data, rng)
    wanted = data.copy()
    wanted.drop("basket", user=ME, product=row["product"], status="Open")
    other = _product(data, rng)
    _put(wanted, other["product"])
    do = [press("View cart"), press("Remove", after=row["product"]), press("Home", "link")]
    do += [*_category(other), press("Add to cart", after=other["product"])]
    goal = f"Remove {row['product']} from the cart, and put one {other['product']} into it."
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _later(data: Data, rng: Random) -> Problem:
    row, other = _cart_row(data, rng), _product(data, rng)
    wanted = data.copy()
    wanted.one("basket", user=ME, product=row["product"], status="Open").update(status="Saved")
    _put(wanted, other["product"])
    goal = f"In the cart, save {row['product']} for later; then add one {other['product']}."
    do = [press("View cart"), press("Save for later", after=row["product"])]
    do += [press("Home", "link"), *_category(other)]
    do += [press("Add to cart", after=other["product"])]
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _coupon(data: Data, rng: Random) -> Problem:
    code = rng.choice(_CODES)
    row = _product(data, rng)
    wanted = data.copy()
    _put(wanted, row["product"])
    wanted.add("vouchers", user=ME, status="Open", code=code)
    goal = f"Put one {row['product']} into the cart and use the coupon code {code}."
    do = [
        *_category(row), press("Add to cart", after=row["product"]), press("View cart"),
        press("I have a coupon code..."), enter("Code", code), press("Add coupon"),
    ]  # fmt: skip
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _wish(data: Data, rng: Random) -> Problem:
    name = rng.choice(_LISTS)
    row = rng.choice(data.all("products"))
    if data.all("wishes", list=name, product=row["product"]):
        return _wish(data, rng)
    wanted = data.copy()
    wanted.add("wishes", user=ME, list=name, product=row["product"], quantity=1)
    goal = f'Add the {row["product"]} to the wish list "{name}".'
    do = [press("Add to wish list"), press(f"Add to '{name}' wish list")]
    return Problem(goal=goal, wanted=wanted, expert=script(*_page(row), *do))


def _new_list(data: Data, rng: Random) -> Problem:
    name, row = rng.choice(_NEW_LISTS), rng.choice(data.all("products"))
    wanted = data.copy()
    wanted.add("lists", user=ME, name=name, visibility="Private")
    wanted.add("wishes", user=ME, list=name, product=row["product"], quantity=1)
    goal = f'Create a wish list "{name}" and add the {row["product"]} to it.'
    do = [
        *_account("Wish Lists"), press("Create a new wish list"), enter("Name", name),
        press("Save"), press("Home", "link"), *_page(row), press("Add to wish list"),
        press(f"Add to '{name}' wish list"),
    ]  # fmt: skip
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _review(data: Data, rng: Random) -> Problem:
    row, stars = rng.choice(data.all("products")), rng.randint(1, 5)
    title, body = rng.choice(_TITLES), rng.choice(_BODIES)
    wanted = data.copy()
    wanted.add(
        "reviews", product=row["product"], user=ME, score=stars, title=title, body=body, status=1
    )
    goal = (
        f"Review the {row['product']} with {stars} {'star' if stars == 1 else 'stars'}, the title "
        f'"{title}" and the text "{body}".'
    )

    def rate(page: ExpertView) -> Move:
        found = [one for one in page.elements if one.mark and ".fa-star" in one.hint]
        return click(found[stars - 1] if len(found) == 5 else None)

    do = [press("Write a review"), enter("Title", title), rate, enter("Body", body)]
    return Problem(goal=goal, wanted=wanted, expert=script(*_page(row), *do, press("Save review")))


def _address(data: Data, rng: Random) -> Problem:
    (first, last), street = rng.choice(_PEOPLE), rng.choice(_STREETS)
    town, code = rng.choice(_TOWNS)
    wanted = data.copy()
    wanted.add(
        "addresses", user=ME, first_name=first, last_name=last, line1=street, line2="", town=town,
        postcode=code, phone="", notes="", ships=0, bills=0, country_id="GB",
    )  # fmt: skip
    goal = (
        f"Add an address to your address book: {first} {last}, {street}, {town}, {code}, "
        "United Kingdom."
    )
    do = [
        *_account("Address Book"), press("Add a new address"), enter("First name", first),
        enter("Last name", last), enter("First line of address", street), enter("City", town),
        enter("Post/Zip-code", code), choose("Country", "United Kingdom"), press("Save"),
    ]  # fmt: skip
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _moved(data: Data, rng: Random) -> Problem:
    row, street = rng.choice(data.all("addresses", user=ME)), rng.choice(_STREETS)
    note = rng.choice(("Ring twice", "Leave it at the door", "Ask the neighbour"))
    wanted = data.copy()
    wanted.one("addresses", user=ME, town=row["town"]).update(line1=street, notes=note)
    goal = (
        f"Of your address in {row['town']}, change the first line to {street} and the "
        f'instructions to "{note}".'
    )
    do = [
        *_account("Address Book"), press("Edit", after=row["town"]),
        enter("First line of address", street), enter("Instructions", note), press("Save"),
    ]  # fmt: skip
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _forget(data: Data, rng: Random) -> Problem:
    """Change one address and make it the default, and delete another."""
    gone, kept = rng.sample(data.all("addresses", user=ME, ships=0), 2)
    street, wanted = rng.choice(_STREETS), data.copy()
    for row in wanted.all("addresses", user=ME):
        row["ships"] = int(row["town"] == kept["town"])
    wanted.one("addresses", user=ME, town=kept["town"]).update(line1=street)
    wanted.drop("addresses", user=ME, town=gone["town"])
    goal = (
        f"Of your address in {kept['town']}, change the first line to {street}, and make it your "
        f"default shipping address; delete the one in {gone['town']}."
    )
    do = [
        *_account("Address Book"),
        press("Edit", after=kept["town"]),
        enter("First line of address", street),
        press("Save"),
        _menu(gone["town"]),
        press("Delete", "link"),
        press("Delete", "button"),
        _menu(kept["town"]),
        press("Set as default shipping address"),
    ]
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _profile(data: Data, rng: Random) -> Problem:
    (first, _), (_, last) = rng.choice(_PEOPLE), rng.choice(_PEOPLE)
    wanted = data.copy()
    wanted.one("users", user=ME).update(first_name=first, last_name=last)
    goal = f"Change the name in your profile to {first} {last}."
    do = [
        *_account("Profile"), press("Edit profile"), enter("First name", first),
        enter("Last name", last), press("Save"),
    ]  # fmt: skip
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _buy(wanted: Data, address: Row) -> None:
    """Turn what is in the cart into an order."""
    number = str(100_001 + len(wanted.all("orders")))
    total = 0.0
    for row in wanted.all("basket", user=ME, status="Open"):
        product = wanted.one("products", product=row["product"])
        product["stock"] -= row["quantity"]
        price = round(float(product["price"]) * row["quantity"], 2)
        total += price
        row["status"] = "Submitted"
        wanted.add(
            "lines", number=number, product=row["product"], quantity=row["quantity"], price=price
        )
    wanted.add(
        "orders", number=number, user=ME, status="", total=round(total, 2),
        line1=address["line1"], town=address["town"], guest="",
    )  # fmt: skip


def _order(data: Data, rng: Random) -> Problem:
    address, row = rng.choice(data.all("addresses", user=ME)), _product(data, rng)
    wanted = data.copy()
    _put(wanted, row["product"])
    _buy(wanted, address)
    goal = (
        f"Put one {row['product']} into the cart and order all that is in it, to be shipped to "
        f"your address in {address['town']}."
    )
    ship = "Ship to your default shipping address" if address["ships"] else "Ship to this address"
    do = [
        *_category(row), press("Add to cart", after=row["product"]), press("View cart"),
        press("Proceed to checkout"), press(ship, after=address["town"]),
        press("Continue", "link"), press("Place order"),
    ]  # fmt: skip
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _again(data: Data, rng: Random) -> Problem:
    number = rng.choice(data.all("orders", user=ME))["number"]
    bought, other = data.all("lines", number=number), _product(data, rng)
    if other["product"] in [row["product"] for row in bought]:
        return _again(data, rng)
    wanted = data.copy()
    for row in bought:
        _put(wanted, row["product"], row["quantity"])
    _put(wanted, other["product"])
    goal = (
        f"Put everything that you bought with order {number} into the cart again, and one "
        f"{other['product']}."
    )
    do = [*_account("Order History"), press(number, "link"), press("Re-order all items")]
    do += [press("Home", "link"), *_category(other)]
    do += [press("Add to cart", after=other["product"])]
    return Problem(goal=goal, wanted=wanted, expert=script(*do))


def _alert(data: Data, rng: Random) -> Problem:
    row, name = _product(data, rng, sold_out=True), rng.choice(_LISTS)
    if data.all("wishes", list=name, product=row["product"]):
        return _alert(data, rng)
    wanted = data.copy()
    wanted.add("alerts", user=ME, product=row["product"], status="Active")
    wanted.add("wishes", user=ME, list=name, product=row["product"], quantity=1)
    goal = (
        f"Ask to be told when the {row['product']} is back in stock, and add it to the wish list "
        f'"{name}".'
    )
    do = [press("Notify me"), press("Add to wish list"), press(f"Add to '{name}' wish list")]
    return Problem(goal=goal, wanted=wanted, expert=script(*_page(row), *do))


def _as_other(data: Data, rng: Random) -> Problem:
    row, user = _product(data, rng), rng.choice(("emil", "fay"))
    wanted = data.copy()
    _put(wanted, row["product"], user=user)
    goal = (
        f'Sign in as {user}@shop.test with the password "{user}-secret" and put one '
        f"{row['product']} into the cart."
    )
    do = [
        press("Login or register", "link"), enter("Email address", f"{user}@shop.test"),
        enter("Password", f"{user}-secret"), press("Log In", "button"), press("Home", "link"),
        *_category(row), press("Add to cart", after=row["product"]),
    ]  # fmt: skip
    return Problem(goal=goal, wanted=wanted, expert=script(*do), signed_in=False)


def _price(data: Data, rng: Random) -> Problem:
    row = rng.choice(data.all("products"))
    goal = f"What does the {row['product']} cost? Answer with the number alone, as in 12.50."
    return question(data, goal, f"{float(row['price']):.2f}", _category(row))


def _stock(data: Data, rng: Random) -> Problem:
    row = _product(data, rng, fresh=False)
    goal = f"How many pieces of {row['product']} are available? Answer with the number."
    return question(data, goal, str(row["stock"]), _page(row))


def _compare(data: Data, rng: Random) -> Problem:
    """Compare prices on three pages."""
    categories = rng.sample(_CATEGORIES, 3)
    rows = [rng.choice(data.all("products", category=name)) for name in categories]
    best = min(rows, key=lambda row: float(row["price"]))["product"]
    names = ", ".join(row["product"] for row in rows)
    goal = f"Which of these is the cheapest: {names}? Answer with its name."
    return question(data, goal, best, [stage for row in rows for stage in _category(row)])


def _spent(data: Data, rng: Random) -> Problem:
    line, other = rng.sample(data.all("lines"), 2)
    if line["number"] == other["number"]:
        return _spent(data, rng)
    orders = [data.one("orders", number=one["number"]) for one in (line, other)]
    total = sum(round(100 * float(order["total"])) for order in orders) / 100
    goal = (
        f"What were the totals of your order with the {line['product']} and of that with the "
        f"{other['product']} together? Answer with the number alone, as in 12.50."
    )
    look: list[Stage] = []
    for one in (line, other):
        look += [*_account("Order History"), press(one["number"], "link")]
    return question(data, goal, f"{total:.2f}", look)


GENERATORS: dict[str, ProblemGenerator] = {
    "add": _add, "address": _address, "again": _again, "alert": _alert, "as-other": _as_other,
    "cheapest": _cheapest, "compare": _compare, "coupon": _coupon, "drop": _drop,
    "forget": _forget, "later": _later, "many": _many, "moved": _moved, "new-list": _new_list,
    "order": _order, "price": _price, "profile": _profile, "quantity": _quantity,
    "review": _review, "search": _search, "spent": _spent, "stock": _stock, "two": _two,
    "wish": _wish,
}  # fmt: skip
"""Kind of task to what makes one."""


# The environment.


IGNORED = (
    "address_useraddress", "auth_user", "basket_basket", "basket_basket_vouchers", "basket_line",
    "catalogue_product", "catalogue_productcategory", "customer_productalert", "django_session",
    "order_line", "order_order", "partner_stockrecord", "reviews_productreview", "reviews_vote",
    "wishlists_line", "wishlists_wishlist",
    # Written along with an order, and what a shop counts about its visitors.
    "order_lineprice", "order_shippingaddress", "order_billingaddress", "order_orderdiscount",
    "order_orderlinediscount", "order_paymentevent", "order_shippingevent", "voucher_voucher",
    "offer_conditionaloffer", "voucher_voucherapplication", "communication_email",
    "communication_notification", "analytics_productrecord", "analytics_userproductview",
    "analytics_userrecord", "analytics_usersearch",
)  # fmt: skip


class ShopEnv(SiteEnv):
    """A shop: the program django-oscar, with 29 products. See ``SiteEnv``."""

    site = "shop"
    program = SHOP
    generators = GENERATORS
    signed_in = django_session("shop")
    queries = read_queries("shop")
    ignored = IGNORED
