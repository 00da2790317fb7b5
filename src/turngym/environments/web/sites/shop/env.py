"""Tasks in a real shop, done by an expert and judged on its database."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from turngym.environments.web.expert_view import (
    ExpertView,
    Move,
    Stage,
    choose,
    click,
    enter,
    press,
)
from turngym.environments.web.sites.catalogue import SHOP
from turngym.environments.web.sites.data import Data, Row
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.problems import Made, question
from turngym.environments.web.sites.program import DJANGO_SESSION

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
"""Opens a menu; it has no name."""


def _product(data: Data, rng: Random, *, sold_out: bool = False, fresh: bool = True) -> Row:
    """Sample a product that is there, or sold out, and not in the cart yet."""
    in_cart = {row["product"] for row in _cart(data)} if fresh else ()
    rows = [row for row in data.all("products") if (row["stock"] == 0) == sold_out]
    return rng.choice([row for row in rows if row["product"] not in in_cart])


def _cart(data: Data) -> list[Row]:
    return data.all("basket", user=ME, status="Open")


def _page(row: Row) -> list[Stage]:
    return [press(row["category"], "link"), press(row["product"], "link")]


def _buy(
    data: Data, row: Row, count: int = 1, *, user: str = ME, way: Sequence[Stage] = ()
) -> list[Stage]:
    """Put a product into a wanted cart; return how: by its category, or the ``way`` to it."""
    do = [*(way or [press(row["category"], "link")]), press("Add to cart", after=row["product"])]
    if count > 1:
        do += _number(row["product"], count, len(_cart(data)))
    data.add("basket", user=user, status="Open", product=row["product"], quantity=count)
    return do


def _from_home(row: Row) -> list[Stage]:
    return [press("Home", "link"), press(row["category"], "link")]


def _number(product: str, count: int, last: int) -> list[Stage]:
    """Change how many there are of what is in the cart at the place ``last``."""
    quantity = enter(f"#id_form-{last}-quantity", str(count))
    return [press("View cart"), quantity, press("Update", after=product)]


def _account(entry: str) -> list[Stage]:
    return [press("Account", "link"), press(entry, "link")]


def _add(data: Data, rng: Random) -> Made:
    row = _product(data, rng)
    return f"Put one {row['product']} into the cart.", _buy(data, row)


def _two(data: Data, rng: Random) -> Made:
    one, two = _product(data, rng), _product(data, rng)
    if one["category"] == two["category"]:
        return _two(data, rng)
    do = [stage for row in (one, two) for stage in _buy(data, row, way=_from_home(row))]
    return f"Put one {one['product']} and one {two['product']} into the cart.", do


def _many(data: Data, rng: Random) -> Made:
    row, count = _product(data, rng), rng.randint(2, 6)
    return f"Put {count} pieces of {row['product']} into the cart.", _buy(data, row, count)


def _search(data: Data, rng: Random) -> Made:
    """Find a product by what its description says."""
    row = _product(data, rng)
    words = row["description"].replace(".", "").split()
    colour, place = words[1], words[4]
    if len(data.all("products", description=row["description"])) > 1:
        return _search(data, rng)
    count = rng.randint(1, 4)
    goal = f"Put {count} of the one thing that is {colour} and made in {place} into the cart."
    way = [enter("Search", f"{colour} {place}"), press("Search", "button")]
    return goal, _buy(data, row, count, way=way)


def _cheapest(data: Data, rng: Random) -> Made:
    in_cart = {row["product"] for row in data.all("basket")}
    category = rng.choice(_CATEGORIES)
    rows = [row for row in data.all("products", category=category) if row["stock"] > 0]
    lowest = min(rows, key=lambda row: float(row["price"]))
    if lowest["product"] in in_cart:
        return _cheapest(data, rng)
    count = rng.randint(1, 9)
    goal = f"Put {count} of the cheapest thing of {category} that is in stock into the cart."
    return goal, _buy(data, lowest, count)


def _quantity(data: Data, rng: Random) -> Made:
    rows = _cart(data)
    place = rng.randrange(len(rows))
    row = rows[place]
    row["quantity"] = count = rng.choice([n for n in range(1, 9) if n != row["quantity"]])
    goal = f"Change the quantity of {row['product']} in the cart to {count}."
    return goal, _number(row["product"], count, place)


def _drop(data: Data, rng: Random) -> Made:
    product = rng.choice(_cart(data))["product"]
    other = _product(data, rng)
    data.drop("basket", user=ME, product=product, status="Open")
    goal = f"Remove {product} from the cart, and put one {other['product']} into it."
    do = [press("View cart"), press("Remove", after=product)]
    return goal, [*do, *_buy(data, other, way=_from_home(other))]


def _later(data: Data, rng: Random) -> Made:
    row, other = rng.choice(_cart(data)), _product(data, rng)
    row["status"] = "Saved"
    goal = f"In the cart, save {row['product']} for later; then add one {other['product']}."
    do = [press("View cart"), press("Save for later", after=row["product"])]
    return goal, [*do, *_buy(data, other, way=_from_home(other))]


def _coupon(data: Data, rng: Random) -> Made:
    code, row = rng.choice(_CODES), _product(data, rng)
    data.add("vouchers", user=ME, status="Open", code=code)
    goal = f"Put one {row['product']} into the cart and use the coupon code {code}."
    return goal, [
        *_buy(data, row), press("View cart"), press("I have a coupon code..."),
        enter("Code", code), press("Add coupon"),
    ]  # fmt: skip


def _to_list(data: Data, name: str, row: Row) -> list[Stage]:
    """Put a product on a wanted list; return how an expert does it from the product's page."""
    data.add("wishes", user=ME, list=name, product=row["product"], quantity=1)
    return [press("Add to wish list"), press(f"Add to '{name}' wish list")]


def _wish(data: Data, rng: Random) -> Made:
    name, row = rng.choice(_LISTS), rng.choice(data.all("products"))
    if data.all("wishes", list=name, product=row["product"]):
        return _wish(data, rng)
    goal = f'Add the {row["product"]} to the wish list "{name}".'
    return goal, [*_page(row), *_to_list(data, name, row)]


def _new_list(data: Data, rng: Random) -> Made:
    name, row = rng.choice(_NEW_LISTS), rng.choice(data.all("products"))
    data.add("lists", user=ME, name=name, visibility="Private")
    goal = f'Create a wish list "{name}" and add the {row["product"]} to it.'
    return goal, [
        *_account("Wish Lists"), press("Create a new wish list"), enter("Name", name),
        press("Save"), press("Home", "link"), *_page(row), *_to_list(data, name, row),
    ]  # fmt: skip


def _review(data: Data, rng: Random) -> Made:
    row, stars = rng.choice(data.all("products")), rng.randint(1, 5)
    title, body = rng.choice(_TITLES), rng.choice(_BODIES)
    review = {"score": stars, "title": title, "body": body, "status": 1}
    data.add("reviews", product=row["product"], user=ME, **review)
    goal = (
        f"Review the {row['product']} with {stars} {'star' if stars == 1 else 'stars'}, the title "
        f'"{title}" and the text "{body}".'
    )

    def rate(page: ExpertView) -> Move:
        found = [one for one in page.elements if one.mark and ".fa-star" in one.hint]
        return click(found[stars - 1] if len(found) == 5 else None)

    do = [press("Write a review"), enter("Title", title), rate, enter("Body", body)]
    return goal, [*_page(row), *do, press("Save review")]


def _address(data: Data, rng: Random) -> Made:
    (first, last), street = rng.choice(_PEOPLE), rng.choice(_STREETS)
    town, code = rng.choice(_TOWNS)
    data.add(
        "addresses", user=ME, first_name=first, last_name=last, line1=street, rest="", town=town,
        postcode=code, phone="", notes="", ships=0, bills=0, country_id="GB",
    )  # fmt: skip
    goal = (
        f"Add an address to your address book: {first} {last}, {street}, {town}, {code}, "
        "United Kingdom."
    )
    return goal, [
        *_account("Address Book"), press("Add a new address"), enter("First name", first),
        enter("Last name", last), enter("First line of address", street), enter("City", town),
        enter("Post/Zip-code", code), choose("Country", "United Kingdom"), press("Save"),
    ]  # fmt: skip


def _moved(data: Data, rng: Random) -> Made:
    row, street = rng.choice(data.all("addresses", user=ME)), rng.choice(_STREETS)
    note = rng.choice(("Ring twice", "Leave it at the door", "Ask the neighbour"))
    row.update(line1=street, notes=note)
    goal = (
        f"Of your address in {row['town']}, change the first line to {street} and the "
        f'instructions to "{note}".'
    )
    return goal, [
        *_account("Address Book"), press("Edit", after=row["town"]),
        enter("First line of address", street), enter("Instructions", note), press("Save"),
    ]  # fmt: skip


def _forget(data: Data, rng: Random) -> Made:
    """Change one address and make it the default, and delete another."""
    gone, kept = rng.sample(data.all("addresses", user=ME, ships=0), 2)
    street, old, town = rng.choice(_STREETS), gone["town"], kept["town"]
    for row in data.all("addresses", user=ME):
        row["ships"] = int(row["town"] == town)
    kept["line1"] = street
    data.drop("addresses", user=ME, town=old)
    goal = (
        f"Of your address in {town}, change the first line to {street}, and make it your "
        f"default shipping address; delete the one in {old}."
    )
    return goal, [
        *_account("Address Book"), press("Edit", after=town),
        enter("First line of address", street), press("Save"), press(_MENU, after=old),
        press("Delete", "link"), press("Delete", "button"), press(_MENU, after=town),
        press("Set as default shipping address"),
    ]  # fmt: skip


def _profile(data: Data, rng: Random) -> Made:
    (first, _), (_, last) = rng.choice(_PEOPLE), rng.choice(_PEOPLE)
    data.one("users", user=ME).update(first_name=first, last_name=last)
    return f"Change the name in your profile to {first} {last}.", [
        *_account("Profile"), press("Edit profile"), enter("First name", first),
        enter("Last name", last), press("Save"),
    ]  # fmt: skip


def _order(data: Data, rng: Random) -> Made:
    address, row = rng.choice(data.all("addresses", user=ME)), _product(data, rng)
    goal = (
        f"Put one {row['product']} into the cart and order all that is in it, to be shipped to "
        f"your address in {address['town']}."
    )
    ship = "Ship to your default shipping address" if address["ships"] else "Ship to this address"
    do = [
        *_buy(data, row), press("View cart"), press("Proceed to checkout"),
        press(ship, after=address["town"]), press("Continue", "link"), press("Place order"),
    ]  # fmt: skip
    number, total = str(100_001 + len(data.all("orders"))), 0.0
    for bought in _cart(data):
        name, count = bought["product"], bought["quantity"]
        product = data.one("products", product=name)
        product["stock"] -= count
        price = round(float(product["price"]) * count, 2)
        total += price
        bought["status"] = "Submitted"
        data.add("lines", number=number, product=name, quantity=count, price=price)
    data.add(
        "orders", number=number, user=ME, status="", total=round(total, 2),
        line1=address["line1"], town=address["town"], guest="",
    )  # fmt: skip
    return goal, do


def _again(data: Data, rng: Random) -> Made:
    number = rng.choice(data.all("orders", user=ME))["number"]
    bought, other = data.all("lines", number=number), _product(data, rng)
    if other["product"] in [row["product"] for row in bought]:
        return _again(data, rng)
    for row in bought:
        data.add("basket", user=ME, status="Open", product=row["product"], quantity=row["quantity"])
    goal = (
        f"Put everything that you bought with order {number} into the cart again, and one "
        f"{other['product']}."
    )
    do = [*_account("Order History"), press(number, "link"), press("Re-order all items")]
    return goal, [*do, *_buy(data, other, way=_from_home(other))]


def _alert(data: Data, rng: Random) -> Made:
    row, name = _product(data, rng, sold_out=True), rng.choice(_LISTS)
    if data.all("wishes", list=name, product=row["product"]):
        return _alert(data, rng)
    data.add("alerts", user=ME, product=row["product"], status="Active")
    goal = (
        f"Ask to be told when the {row['product']} is back in stock, and add it to the wish list "
        f'"{name}".'
    )
    return goal, [*_page(row), press("Notify me"), *_to_list(data, name, row)]


def _as_other(data: Data, rng: Random) -> Made:
    row, user = _product(data, rng), rng.choice(("emil", "fay"))
    goal = (
        f'Sign in as {user}@shop.test with the password "{user}-secret" and put one '
        f"{row['product']} into the cart."
    )
    sign_in = [press("Login or register", "link"), enter("Email address", f"{user}@shop.test")]
    sign_in += [enter("Password", f"{user}-secret"), press("Log In", "button")]
    return goal, _buy(data, row, user=user, way=[*sign_in, *_from_home(row)])


def _price(data: Data, rng: Random) -> Made:
    row = rng.choice(data.all("products"))
    goal = f"What does the {row['product']} cost? Answer with the number alone, as in 12.50."
    return question(goal, f"{float(row['price']):.2f}", _page(row)[:1])


def _stock(data: Data, rng: Random) -> Made:
    row = _product(data, rng, fresh=False)
    goal = f"How many pieces of {row['product']} are available? Answer with the number."
    return question(goal, str(row["stock"]), _page(row))


def _compare(data: Data, rng: Random) -> Made:
    categories = rng.sample(_CATEGORIES, 3)
    rows = [rng.choice(data.all("products", category=name)) for name in categories]
    best = min(rows, key=lambda row: float(row["price"]))["product"]
    names = ", ".join(row["product"] for row in rows)
    goal = f"Which of these is the cheapest: {names}? Answer with its name."
    return question(goal, best, [press(name, "link") for name in categories])


def _spent(data: Data, rng: Random) -> Made:
    line, other = rng.sample(data.all("lines"), 2)
    if line["number"] == other["number"]:
        return _spent(data, rng)
    orders = [data.one("orders", number=one["number"]) for one in (line, other)]
    total = sum(round(100 * float(order["total"])) for order in orders) / 100
    goal = (
        f"What were the totals of your order with the {line['product']} and of that with the "
        f"{other['product']} together? Answer with the number alone, as in 12.50."
    )
    looks = ([*_account("Order History"), press(one["number"], "link")] for one in (line, other))
    return question(goal, f"{total:.2f}", [stage for look in looks for stage in look])


class ShopEnv(SiteEnv):
    """A shop: the program django-oscar, with 29 products. See ``SiteEnv``."""

    site = "shop"
    program = SHOP
    signed_in = DJANGO_SESSION
    ignored = (
        "address_useraddress", "auth_user", "basket_basket", "basket_basket_vouchers",
        "basket_line", "catalogue_product", "catalogue_productcategory", "customer_productalert",
        "django_session", "order_line", "order_order", "partner_stockrecord",
        "reviews_productreview", "reviews_vote", "wishlists_line", "wishlists_wishlist",
        # Written along with an order, and what a shop counts about its visitors.
        "order_lineprice", "order_shippingaddress", "order_billingaddress", "order_orderdiscount",
        "order_orderlinediscount", "order_paymentevent", "order_shippingevent", "voucher_voucher",
        "offer_conditionaloffer", "voucher_voucherapplication", "communication_email",
        "communication_notification", "analytics_productrecord", "analytics_userproductview",
        "analytics_userrecord", "analytics_usersearch",
    )  # fmt: skip
