"""Makes the shop that episodes begin with. Runs in the shop's own Python.

Usage: python seed.py DATA NUMBER     (each number gives other content)
"""

from __future__ import annotations

import random
import sys
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from django_site import START, make_tables, sign_in
from project import set_up

PRODUCTS = {
    "Kitchen": (
        "Bread knife", "Cast iron pan", "Coffee grinder", "Enamel pot", "Salad bowl", "Tea kettle",
        "Wooden spoon",
    ),
    "Garden": (
        "Bird feeder", "Garden gloves", "Hand trowel", "Rain gauge", "Seed tray", "Watering can",
    ),
    "Stationery": (
        "Desk calendar", "Fountain pen", "Leather notebook", "Paper knife", "Pencil case",
        "Wall map",
    ),
    "Toys": ("Building blocks", "Kite", "Marble run", "Spinning top", "Wooden train"),
    "Lamps": ("Bedside lamp", "Camping lantern", "Clip light", "Floor lamp", "String lights"),
}  # fmt: skip
COLOURS = ("black", "blue", "brown", "green", "grey", "pink", "red", "white", "yellow")
PLACES = ("Porto", "Ghent", "Graz", "Turku", "Cork", "Pula", "Vilnius", "Malmo")
ADDRESSES = (
    ("Dora", "Lind", "4 Mill Lane", "York", "YO1 7HU"),
    ("Dora", "Lind", "19 Harbour Road", "Whitby", "YO21 1DN"),
    ("Karl", "Lind", "2 Abbey Court", "Durham", "DH1 3LE"),
    ("Dora", "Lind", "31 Bridge Street", "Selby", "YO8 4QD"),
    ("Ines", "Lind", "8 Market Row", "Malton", "YO17 7LX"),
)
SOLD_OUT = ("Camping lantern", "Enamel pot", "Floor lamp", "Paper knife", "Rain gauge")
IN_BASKET = (("Salad bowl", 1), ("Kite", 2), ("Wall map", 1))
LISTS = {"Birthday": ("Marble run", "Fountain pen"), "Later": ("Floor lamp",)}
ORDERS = (
    (("Tea kettle", 1), ("Seed tray", 4)),
    (("Spinning top", 3),),
    (("Clip light", 2), ("Desk calendar", 1)),
    (("Bird feeder", 1), ("Wooden spoon", 2), ("Pencil case", 1)),
)
VOUCHERS = {"Spring sale": ("SPRING10", 10), "Welcome back": ("AGAIN5", 5)}
REVIEWS = ("Does what it should", "Broke after a week", "A present that was liked", "Too small")


def main(data: Path, number: int) -> None:
    clock = set_up(data)
    clock.fixed = START
    make_tables(data)
    draw = random.Random(3 + 1_000 * number)
    customers = make_customers()
    products = make_products(draw, clock)
    make_reviews(products, customers, draw, clock)
    make_addresses(customers[0])
    for day, lines in enumerate(ORDERS, start=2):
        clock.fixed = START + timedelta(days=day)
        place_order(customers[0], [(products[name], count) for name, count in lines])
    clock.fixed = START + timedelta(days=8)
    make_lists(customers[0], products)
    make_vouchers()
    fill_basket(customers[0], [(products[name], count) for name, count in IN_BASKET])
    sign_in(customers[0])


def make_customers() -> list[Any]:
    from django.contrib.auth.models import User

    return [
        User.objects.create_user(
            name,
            f"{name}@shop.test",
            f"{name}-secret",
            first_name=name.capitalize(),
            last_name=last,
        )
        for name, last in (("dora", "Lind"), ("emil", "Roos"), ("fay", "Moss"))
    ]


def make_products(draw: random.Random, clock: Any) -> dict[str, Any]:
    from oscar.apps.catalogue.models import Category, Product, ProductClass
    from oscar.apps.partner.models import Partner, StockRecord

    kind = ProductClass.objects.create(name="Thing", requires_shipping=True, track_stock=True)
    partner = Partner.objects.create(name="Warehouse")
    prices = [f"{euros}.{cents}" for euros in range(3, 70) for cents in ("20", "50", "90")]
    draw.shuffle(prices)
    products: dict[str, Any] = {}
    for category_name, names in PRODUCTS.items():
        category = Category.add_root(name=category_name)
        for name in names:
            clock.fixed = START + timedelta(minutes=len(products))
            text = f"In {draw.choice(COLOURS)}. Made in {draw.choice(PLACES)}."
            product = Product.objects.create(
                title=name, upc=f"T{100 + len(products)}", product_class=kind, description=text
            )
            product.categories.add(category)
            StockRecord.objects.create(
                product=product,
                partner=partner,
                partner_sku=f"W{100 + len(products)}",
                price=Decimal(prices[len(products)]),
                price_currency="EUR",
                num_in_stock=0 if name in SOLD_OUT else draw.choice((9, 14, 23, 40, 61)),
            )
            products[name] = product
    return products


def make_reviews(
    products: dict[str, Any], customers: list[Any], draw: random.Random, clock: Any
) -> None:
    from oscar.apps.catalogue.reviews.models import ProductReview

    for number, product in enumerate(products.values()):
        for customer in customers[1:]:
            if draw.random() < 0.6:
                clock.fixed = START + timedelta(days=1, minutes=number)
                ProductReview.objects.create(
                    product=product, user=customer, score=draw.randint(1, 5),
                    title=draw.choice(REVIEWS), body=f"Says {customer.first_name}.", status=1,
                )  # fmt: skip


def make_addresses(customer: Any) -> None:
    from oscar.apps.address.models import Country, UserAddress

    for code, name in (("GB", "United Kingdom"), ("IE", "Ireland")):
        country = Country.objects.create(
            iso_3166_1_a2=code, iso_3166_1_a3=f"{code}X", iso_3166_1_numeric=code,
            printable_name=name, name=name, is_shipping_country=True, display_order=1,
        )  # fmt: skip
        if code == "GB":
            britain = country
    for first, last, line, town, code in ADDRESSES:
        UserAddress.objects.create(
            user=customer, first_name=first, last_name=last, line1=line, line4=town,
            postcode=code, country=britain, is_default_for_shipping=town == "York",
        )  # fmt: skip


def fill_basket(customer: Any, lines: list[tuple[Any, int]]) -> Any:
    from oscar.apps.basket.models import Basket
    from oscar.apps.partner.strategy import Selector

    basket = Basket.objects.create(owner=customer)
    basket.strategy = Selector().strategy()
    for product, count in lines:
        basket.add_product(product, count)
    return basket


def place_order(customer: Any, lines: list[tuple[Any, int]]) -> None:
    from oscar.apps.checkout.calculators import OrderTotalCalculator
    from oscar.apps.order.models import ShippingAddress
    from oscar.apps.order.utils import OrderCreator
    from oscar.apps.shipping.methods import Free

    basket = fill_basket(customer, lines)
    address = ShippingAddress()
    customer.addresses.get(line4="York").populate_alternative_model(address)
    address.save()
    method = Free()
    charge = method.calculate(basket)
    OrderCreator().place_order(
        basket,
        OrderTotalCalculator().calculate(basket, charge),
        method,
        charge,
        user=customer,
        shipping_address=address,
        status="Pending",
    )
    basket.submit()


def make_lists(customer: Any, products: dict[str, Any]) -> None:
    from oscar.apps.wishlists.models import WishList

    for name, content in LISTS.items():
        wishes = WishList.objects.create(owner=customer, name=name)
        for product in content:
            wishes.add(products[product])


def make_vouchers() -> None:
    from oscar.apps.offer.models import Benefit, Condition, ConditionalOffer, Range
    from oscar.apps.voucher.models import Voucher

    everything = Range.objects.create(name="Everything", includes_all_products=True)
    for name, (code, percent) in VOUCHERS.items():
        offer = ConditionalOffer.objects.create(
            name=name,
            offer_type=ConditionalOffer.VOUCHER,
            condition=Condition.objects.create(range=everything, type="Count", value=1),
            benefit=Benefit.objects.create(range=everything, type="Percentage", value=percent),
        )
        voucher = Voucher.objects.create(
            name=name, code=code, usage=Voucher.MULTI_USE, start_datetime=START,
            end_datetime=START + timedelta(days=400),
        )  # fmt: skip
        voucher.offers.add(offer)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), int(sys.argv[2]))
