"""The shop as a Django project. Runs in the shop's own Python."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from django_site import MIDDLEWARE, Clock, configure, templates
from oscar import defaults
from oscar.core.thumbnails import AbstractThumbnailer

NEWEST = """SELECT max(t) FROM (SELECT max(date_placed) t FROM order_order
    UNION SELECT max(date_created) FROM reviews_productreview
    UNION SELECT max(date_created) FROM basket_line
    UNION SELECT max(date_created) FROM wishlists_wishlist)"""
_SHOP_APPS = (
    "config.Shop", "apps.analytics.apps.AnalyticsConfig", "apps.checkout.apps.CheckoutConfig",
    "apps.address.apps.AddressConfig", "apps.shipping.apps.ShippingConfig",
    "apps.catalogue.apps.CatalogueConfig", "apps.catalogue.reviews.apps.CatalogueReviewsConfig",
    "apps.communication.apps.CommunicationConfig", "apps.partner.apps.PartnerConfig",
    "apps.basket.apps.BasketConfig", "apps.payment.apps.PaymentConfig",
    "apps.offer.apps.OfferConfig", "apps.order.apps.OrderConfig",
    "apps.customer.apps.CustomerConfig", "apps.search.apps.SearchConfig",
    "apps.voucher.apps.VoucherConfig", "apps.wishlists.apps.WishlistsConfig",
    "apps.dashboard.apps.DashboardConfig", "apps.dashboard.reports.apps.ReportsDashboardConfig",
    "apps.dashboard.users.apps.UsersDashboardConfig",
    "apps.dashboard.orders.apps.OrdersDashboardConfig",
    "apps.dashboard.catalogue.apps.CatalogueDashboardConfig",
    "apps.dashboard.offers.apps.OffersDashboardConfig",
    "apps.dashboard.partners.apps.PartnersDashboardConfig",
    "apps.dashboard.pages.apps.PagesDashboardConfig",
    "apps.dashboard.ranges.apps.RangesDashboardConfig",
    "apps.dashboard.reviews.apps.ReviewsDashboardConfig",
    "apps.dashboard.vouchers.apps.VouchersDashboardConfig",
    "apps.dashboard.communications.apps.CommunicationsDashboardConfig",
    "apps.dashboard.shipping.apps.ShippingDashboardConfig",
)  # fmt: skip
_BASE = """{% extends "oscar/base.html" %}{% load static %}{% block cdn_scripts %}
<script src="{% static "oscar/js/jquery/jquery.min.js" %}"></script>{% endblock %}"""


class Thumbnails(AbstractThumbnailer):  # type: ignore[misc]  # of an untyped package
    """Shows one picture for all products."""

    def generate_thumbnail(self, source: Any, **options: Any) -> Any:
        return SimpleNamespace(url="/static/oscar/img/image_not_found.jpg", width=100, height=100)

    def delete_thumbnails(self, source: Any) -> None:
        pass


def set_up(data: Path) -> Clock:
    """Set Django up for the data in a folder."""
    own = {name: getattr(defaults, name) for name in dir(defaults) if name.startswith("OSCAR_")}
    own |= {
        "OSCAR_SHOP_NAME": "Corner shop",
        "OSCAR_DEFAULT_CURRENCY": "EUR",
        "OSCAR_THUMBNAILER": "project.Thumbnails",
        "OSCAR_SEND_REGISTRATION_EMAIL": False,
    }
    clock = configure(
        data,
        newest=NEWEST,
        AUTHENTICATION_BACKENDS=["oscar.apps.customer.auth_backends.EmailBackend"],
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "django.contrib.sites",
            "django.contrib.messages",
            "django.contrib.staticfiles",
            "django.contrib.flatpages",
            *(f"oscar.{name}" for name in _SHOP_APPS),
            "widget_tweaks",
            "haystack",
            "treebeard",
            "django_tables2",
        ],
        LOGIN_REDIRECT_URL="/",
        MIDDLEWARE=[*MIDDLEWARE, "oscar.apps.basket.middleware.BasketMiddleware"],
        ROOT_URLCONF="project",
        TEMPLATES=templates(
            context=(
                "oscar.apps.search.context_processors.search_form",
                "oscar.apps.checkout.context_processors.checkout",
                "oscar.apps.communication.notifications.context_processors.notifications",
                "oscar.core.context_processors.metadata",
            ),
            oscar__base=_BASE,
        ),
        **own,
    )
    name_lists_by_number()
    return clock


def name_lists_by_number() -> None:
    """Give wish lists keys that are the same each time; the program makes them up."""
    from oscar.apps.wishlists import abstract_models

    def key(length: int, **_: str) -> str:
        from oscar.core.loading import get_model

        newest = get_model("wishlists", "WishList").objects.order_by("-pk").first()
        return f"L{0 if newest is None else newest.pk:0{length - 1}}"

    abstract_models.get_random_string = key


def __getattr__(name: str) -> object:
    """Return the addresses of the site; they can be made only once Django is set up."""
    if name != "urlpatterns":
        raise AttributeError(name)
    from django.apps import apps
    from django.urls import include, path

    return [path("", include(apps.get_app_config("oscar").urls[0]))]
