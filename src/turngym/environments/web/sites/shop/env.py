"""Tasks in a real shop, judged on its database."""

from __future__ import annotations

from turngym.environments.web.sites.catalogue import SHOP
from turngym.environments.web.sites.data import read_queries
from turngym.environments.web.sites.env import SiteEnv
from turngym.environments.web.sites.program import django_session
from turngym.environments.web.sites.shop.tasks import GENERATORS

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
